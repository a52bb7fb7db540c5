"""axe-core finds nothing on the gateway's page, whatever it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import npm_clients
from tests.support.page import Page, page_of

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SAID = """# All

Some *words* and `code`, [a link](https://example.com), and a list:

1. one
   - inner

> quoted

| a | b |
| - | - |
| 1 | 2 |

```python
x = 1
```
"""
REPLIES = [("call it", CALL), ("say all", f"<think>\nWell.\n</think>\n\n{SAID}")]

AXE = npm_clients.home(npm_clients.PAGE) / "node_modules/axe-core/axe.min.js"

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not AXE.exists(), reason="no axe-core here; make test-clients installs it"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page_of(tmp_path_factory.mktemp("page"), REPLIES) as opened:
        yield opened


def found(page: Page) -> list[Any]:
    """The rules that are broken now, and where."""
    page.value(AXE.read_text("utf-8") + "; 1")
    # what fades in is looked at when it is there
    page.value("Promise.all(document.getAnimations().map(a => a.finished)).then(() => 1)")
    ran: list[Any] = page.value(
        "axe.run({resultTypes: ['violations']}).then(r => r.violations.map("
        "v => [v.id, v.help, v.nodes.map(n => n.html.slice(0, 200))]))"
    )
    return ran


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_axe_finds_nothing(page: Page, width: int, dark: bool) -> None:
    page.size(width, dark=dark)
    page.open()
    assert found(page) == []
    page.click("#open-settings")
    assert found(page) == []
    page.write("#set-tools", json.dumps([TOOL]))
    page.click("#settings .main")
    page.ask("say all")
    page.answered()
    page.until("!document.querySelector('#recentcard').hidden")
    page.point(".assistant .text")
    page.click(".assistant summary")
    assert found(page) == []
    page.ask("call it")
    page.answered(2)
    assert found(page) == []
    for panel in ("chats", "figures") if width < 1180 else ():
        page.click(f"#open-{panel}")
        assert found(page) == []
        page.press("Escape")
    page.value("document.querySelector('.user .foot [type=button]:not(.copy)').click()")
    assert found(page) == []
