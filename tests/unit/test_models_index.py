"""Names of models of this machine: whatever its folders do, the daemon goes on."""

from __future__ import annotations

import pytest
import trio

from umaserve.server.supervision import models_index
from umaserve.server.supervision.models_index import ModelsIndex


@pytest.mark.parametrize("fault", [PermissionError(13, "no"), RuntimeError("no home directory")])
def test_folders_that_cannot_be_read_name_no_models(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    async def refused(*_: object) -> None:
        raise fault

    monkeypatch.setattr(models_index, "ask_file", refused)
    index = ModelsIndex("")
    trio.run(index.read)
    assert index.paths == {} and not index.is_old
