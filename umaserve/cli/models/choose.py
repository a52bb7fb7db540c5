"""Which model a daemon serves: the one that is named, that was chosen before, or is chosen now."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from umaserve.assets import demo_model_path
from umaserve.cli.parts.common import EXIT_CANNOT_SERVE, EXIT_USAGE, in_a_line, say
from umaserve.config import Config
from umaserve.models import chosen
from umaserve.models.finding.places import Places, places
from umaserve.models.finding.reference import BadReference, NotHere, hub_reference, locate

from .suggest import HOW, sentence


class NoModel(Exception):
    """Nothing can be served; the message says why, empty where the person was told.

    ``status``: what the process exits with.
    """

    def __init__(self, message: str, status: int = EXIT_CANNOT_SERVE) -> None:
        super().__init__(message)
        self.status = status


def with_model(config: Config, ask: bool, tell: Callable[[str], None]) -> Config:
    """``config`` with the path of the model to serve; empty stays for the bundled one.

    ``ask``: somebody sits at a terminal.  ``tell`` gets a sentence where nobody named a model.
    Raises ``NoModel``.
    """
    where = places(model_dir=config.model_dir)
    if config.origin.get("model", "default") != "default":
        path = named(config.model, where, ask) if config.model else ""
    else:
        path = _default(config, where, ask, tell)
    def found(reference: str) -> str:
        return named(reference, where, ask) or str(demo_model_path())

    models = {
        name: model._replace(
            path=found(model.path), draft_model=model.draft_model and found(model.draft_model)
        )
        for name, model in config.models.items()
    }
    draft = found(config.draft_model) if config.draft_model else ""
    return replace(config, model=path, draft_model=draft, models=models)


def somebody_asks() -> bool:
    """Whether a person sits at a terminal that this process may read from and write to."""
    try:
        ours = sys.stdin.isatty() and sys.stdout.isatty()
        # a job in the background would be stopped by the shell as soon as it reads
        return ours and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def named(reference: str, where: Places, ask: bool) -> str:
    """Path of the model of that name, empty for the bundled one.  Raises ``NoModel``.

    ``ask``: offer to fetch what is not there.
    """
    try:
        return locate(reference, where)
    except BadReference as error:
        raise NoModel(str(error), EXIT_USAGE) from None
    except NotHere as error:
        if not error.fetch or not ask:
            raise NoModel(str(error)) from None
        return _offer(error.fetch)


def _offer(reference: str) -> str:
    """Ask whether to fetch what is not there."""
    from .pull import fetched

    say(f"{in_a_line(reference)} is not on this machine.")
    status, path = fetched(hub_reference(reference), ask=True)
    if not path:
        raise NoModel("", status)
    return path


def _default(config: Config, where: Places, ask: bool, tell: Callable[[str], None]) -> str:
    name = chosen.chosen()
    if name:
        try:
            path = locate(name, where)
            if path and not os.path.exists(path):
                raise NotHere(f"{name} does not exist")
        except (NotHere, BadReference) as error:
            gone = f"the model that was chosen before is gone: {error}"
            if not ask:
                raise NoModel(f"{gone}. {HOW}; --model demo is the demonstration") from None
            tell(in_a_line(gone))
        else:
            if path:
                tell(f"serving {in_a_line(name)}, as chosen before; {HOW}")
            return path
    if ask:
        from .ask import ask_which

        return ask_which(where, (config.kv_type_k, config.kv_type_v), tell)
    tell(f"no model was named or chosen, so this serves the demonstration; {HOW}")
    tell(sentence())
    return ""
