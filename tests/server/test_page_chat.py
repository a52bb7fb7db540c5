"""The chat of the gateway's page in Chromium; the model's words are given."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.page import Page

MARKDOWN = """## Steps
Some **bold** with *stress*, `code` and a [name](https://example.com/there).

1. one
   - inner
2. [x] two

| what | how many |
| --- | ---: |
| a \\| b | 2 |

```python
if x:
	print("**no**")
```

1. In an item:
	```make
	all:
		true
	```

<img src=x onerror="document.title='taken'"> [bad](javascript:alert(1)) ![seen](https://example.com/p.png)
"""
CODE = 'if x:\n\tprint("**no**")'
REPLIES = [
    ("go on", "It goes on."),
    ("another question", "Another answer."),
    ("marks", "<think>\nI think **so**.\n</think>\n\n" + MARKDOWN),
    ("without end", "again " * 1200),
    ("first question", "First answer."),
]
CHAT = "document.querySelector('#said')"


def test_markdown_becomes_elements_and_markup_stays_text(page: Page) -> None:
    page.ask("marks, please")
    page.answered()
    answer = ".assistant > .text "
    kinds = ("h3", "strong", "em", "p code", "ol > li > ul > li", "td.right", "pre code")
    found = {kind: page.text(answer + kind) for kind in kinds}
    assert found == {
        "h3": ["Steps"], "strong": ["bold"], "em": ["stress"], "p code": ["code"],
        "ol > li > ul > li": ["inner"], "td.right": ["2"],
        "pre code": [CODE, "all:\n\ttrue"],
    }  # fmt: skip
    assert page.text(answer + "ol > li:nth-child(2)")[0] == "☑ two"
    assert page.text(answer + "td.left") == ["a | b"]
    # a link says where it leads; a picture is one, and no address that runs is followed
    links = page.value(
        f"[...document.querySelectorAll('{answer} a')].map(a => [a.textContent, a.href, a.rel])"
    )
    rel = "noopener noreferrer nofollow"
    assert links == [
        ["name", "https://example.com/there", rel], ["seen", "https://example.com/p.png", rel],
    ]  # fmt: skip
    assert page.text(answer + ".address")[0] == " (https://example.com/there)"
    (last,) = page.text(answer + "> p:last-child")
    assert last.startswith("<img src=x onerror=") and "[bad](javascript:alert(1))" in last
    assert page.value(f"{CHAT}.querySelectorAll('img, script').length") == 0
    assert page.value("document.title") == "UMA Serve"


def test_hostile_markdown_is_shown_in_time(page: Page) -> None:
    """Text of nothing but openings: nothing is searched for more than once."""
    page.ask("first question")
    page.answered()
    hostile = [
        mark * 100000 for mark in ("[", "*a ", "`a``", "![", "<a", "> ", "- ", "|", "_a *b ~~c ")
    ]
    # the newest answer is drawn anew from its text: the longest one that the model could give
    page.value(
        "new Promise(done => { const open = indexedDB.open('umaserve'); open.onsuccess = () => {"
        "const all = open.result.transaction('chats', 'readwrite'); all.oncomplete = done;"
        "const chats = all.objectStore('chats');"
        "chats.getAll().onsuccess = ({target}) => { const chat = target.result[0];"
        f"chat.nodes.at(-1).content = {json.dumps(hostile)}.join('\\n\\n');"
        "chats.put(chat) } } }).then(() => 1)"
    )
    page.reload()
    page.answered()
    shown = page.value(f"{CHAT}.querySelector('.assistant .text').textContent.length")
    assert shown > 1000000


def test_thinking_is_folded(page: Page) -> None:
    page.ask("marks, please")
    page.answered()
    assert page.text(".assistant summary")[0] == "Thinking"
    assert [text.strip() for text in page.text(".thought")] == ["I think **so**."]
    assert not page.shown(".thought")
    page.click(".assistant summary")
    assert page.shown(".thought")


def test_copies_a_message_and_a_block_of_code(page: Page) -> None:
    page.ask("marks, please")
    page.answered()
    page.click(".code button")
    page.until("document.querySelector('.code button').textContent === 'Copied'")
    assert page.pasted() == CODE
    page.click(".assistant .foot .copy")
    page.until("document.querySelector('.assistant .foot .copy').textContent === 'Copied'")
    assert page.pasted() == MARKDOWN


def test_another_answer_is_a_branch_beside_the_first(page: Page) -> None:
    page.ask("first question")
    page.answered()
    page.click(".assistant .foot [type=button]:not(.copy)")
    page.until("document.querySelector('.assistant .branch')?.textContent === '2 of 2'")
    assert page.said() == ["first question", "First answer."]
    assert [each["role"] for each in page.sent()["messages"]] == ["user"]
    page.click("[aria-label='Former branch']")
    assert page.text(".branch") == ["1 of 2"]


def test_an_edited_question_is_a_branch(page: Page) -> None:
    page.ask("first question")
    page.answered()
    page.click(".user .foot [type=button]:not(.copy)")
    page.write(".editing textarea", "another question")
    page.press("Enter")
    page.until("document.querySelector('.user .branch')?.textContent === '2 of 2'")
    page.answered()
    assert page.said() == ["another question", "Another answer."]
    assert [each["content"] for each in page.sent()["messages"]] == ["another question"]
    page.click(".user [aria-label='Former branch']")
    assert page.said() == ["first question", "First answer."]
    page.click(".user .foot [type=button]:not(.copy):not([aria-label])")
    page.press("Escape")
    assert page.said() == ["first question", "First answer."]


@pytest.mark.parametrize("how", ["button", "key"])
def test_an_answer_is_stopped_and_what_came_stays(page: Page, how: str) -> None:
    page.ask("without end")
    page.until("document.querySelector('.assistant .text')?.textContent.length > 20")
    assert page.text("#send") == ["Stop"]
    page.press("Escape") if how == "key" else page.click("#send")
    page.answered()
    (facts,) = page.text(".assistant .facts")
    assert facts.startswith("stopped") and page.said()[1].startswith("again again")
    page.ask("go on")
    page.answered(2)
    assert page.said()[3] == "It goes on."
    assert [each["role"] for each in page.sent()["messages"]] == ["user", "assistant", "user"]


def test_figures_of_an_answer_are_shown_on_hover(page: Page) -> None:
    page.ask("first question")
    page.answered()
    shown = "getComputedStyle(document.querySelector('.assistant .foot')).opacity"
    page.point("#text")
    assert page.value(shown) == "0"
    page.point(".assistant .text")
    page.until(f"{shown} === '1'")
    (facts,) = page.text(".assistant .facts")
    assert re.search(r"\d+ tokens.* · first after .* in the prompt.* · interactive · ", facts)
    page.point("#text")
    page.until(f"{shown} === '0'")
    page.value("document.querySelector('.assistant .foot button').focus()")
    page.until(f"{shown} === '1'")
