"""Errors of a hub, each in a sentence that says what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PullError(Exception):
    """A model was not fetched; the message says why and what to do."""


@contextlib.contextmanager
def told_plainly(repository: str) -> Iterator[None]:
    """Turns the errors of ``huggingface_hub`` and of the network into ``PullError``."""
    import httpx2
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    token = "set HF_TOKEN to a token of an account that may read it, or run: hf auth login"
    try:
        yield
    except errors.GatedRepoError as error:
        raise PullError(
            f"{repository} asks for consent: accept its terms at {hub}/{repository}, then {token}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise PullError(
            f"{hub} shows no repository {repository}: check the name; if it is private, {token}"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise PullError("HF_HUB_OFFLINE is set; unset it to fetch a model") from error
    except errors.HFValidationError as error:
        raise PullError(f"{repository} is no name of a repository: {error}") from error
    except errors.HfHubHTTPError as error:
        raise PullError(f"{hub} answered {_answer(error)}; try again later") from error
    except (httpx2.HTTPError, errors.LocalEntryNotFoundError) as error:
        why = str(error) or type(error).__name__
        raise PullError(
            f"{hub} cannot be reached ({why}); what came so far is kept, pull again to go on"
        ) from error
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise PullError(
            f"the disk of {constants.HF_HUB_CACHE} is full; what came so far is kept: make room "
            "and pull again, or set HF_HOME to a folder on another disk"
        ) from error
    except (ValueError, KeyError, TypeError) as error:  # what came is not what a hub says
        raise PullError(f"{hub} does not answer as a hub does; is HF_ENDPOINT right?") from error


def _answer(error: Exception) -> str:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401:
        return "401: the token in HF_TOKEN is not accepted"
    if status == 403:
        return "403: the token in HF_TOKEN may not read this repository"
    if status:
        return str(status)
    return (str(error).strip() or type(error).__name__).splitlines()[0]
