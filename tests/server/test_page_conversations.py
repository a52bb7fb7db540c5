"""Kept conversations of the gateway's page, and the contents of its requests, in Chromium."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.support.page import Page
from tests.support.waiting import until

CALL = {"name": "read_file", "arguments": {"path": "a.txt"}}
TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}
CALLED = f"<think>\nA file.\n</think>\n\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
REPLIES = [
    ("42 lines", "It has 42 lines."),
    ("words of the file", "That file I know."),
    ("another question", "Another answer."),
    ("call it", CALLED),
    ("first question", "First answer."),
    ("without end", "again " * 1200),
]


def test_conversations_are_kept_exported_and_deleted(page: Page, tmp_path: Path) -> None:
    page.ask("first question")
    page.answered()
    page.click("#new")
    page.ask("another question")
    page.answered()
    page.reload()
    page.answered()
    assert page.said() == ["another question", "Another answer."]
    assert page.text("#list .title") == ["another question", "first question"]
    page.open(fresh=False)
    assert page.said() == []
    page.click("#list li:last-child .title")
    page.answered()
    page.until("document.activeElement.matches('#list [aria-current]')")
    assert page.said() == ["first question", "First answer."]
    page.browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#export-all")
    file = tmp_path / "conversations.json"
    until(lambda: file.exists() and file.read_text("utf-8").rstrip().endswith("}"), 60)
    exported = json.loads(file.read_text("utf-8"))
    assert exported["format"] == "umaserve-conversations-1"
    words = [[node["content"] for node in chat["nodes"]] for chat in exported["chats"]]
    assert words == [["another question", "Another answer."], ["first question", "First answer."]]
    page.point("#list li:last-child .title")
    page.click("#list li:last-child [aria-label^=Delete]")
    assert page.text("#sure-text") == ["Delete “first question”?"]
    page.click("#sure .main")
    page.until("document.querySelectorAll('#list .title').length === 1")
    assert page.said() == []
    page.click("#delete-all")
    page.click("#sure-no")
    assert page.text("#list .title") == ["another question"]
    page.click("#delete-all")
    page.click("#sure .main")
    page.until("document.querySelectorAll('#list .title').length === 0")
    page.open(fresh=False)
    assert page.text("#list .title") == []
    # an export comes back
    page.pick("#import-file", file)
    page.until("document.querySelectorAll('#list .title').length === 2")
    page.click("#list li:last-child .title")
    assert page.said() == ["first question", "First answer."]


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(page: Page) -> None:
    page.ask("without end")
    page.until("document.querySelector('.assistant .text')?.textContent.length > 20")
    page.click("#delete-all")
    page.click("#sure .main")
    page.until("document.querySelectorAll('#list .title').length === 0")
    assert page.said() == []
    page.ask("first question")
    page.answered()
    page.until("document.querySelectorAll('#list .title').length > 0")
    page.open(fresh=False)
    page.until("document.querySelectorAll('#list .title').length > 0")
    assert page.text("#list .title") == ["first question"]


def test_a_conversation_that_the_browser_refuses_lasts_as_long_as_the_page(page: Page) -> None:
    page.value("IDBObjectStore.prototype.put = () => { throw new DOMException('no room') }; 1")
    page.ask("first question")
    page.answered()
    page.until("!document.querySelector('#nokept').hidden")
    page.click("#new")
    page.until("!document.querySelector('#said article')")
    page.click("#list .title")
    assert page.said() == ["first question", "First answer."]


def test_system_prompt_sampling_lane_and_model_go_with_a_question(page: Page) -> None:
    models = [{"id": "model"}, {"id": "other", "note": "a base model: it continues text"}]
    page.open({"/v1/models": {"data": models}})
    page.until("document.querySelectorAll('#model option').length === 2")
    page.value("document.querySelector('#model').value = 'other'")
    page.value("document.querySelector('#model').dispatchEvent(new Event('change'))")
    page.value("document.querySelector('#lane').value = 'background'")
    page.value("document.querySelector('#lane').dispatchEvent(new Event('change'))")
    page.click("#open-settings")
    page.write("#set-system", "Be brief.")
    page.write("#set-temperature", "0.5")
    page.write("#set-seed", "7")
    page.click("#settings .main")
    page.ask("first question")
    page.answered()
    body = page.sent()
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {name: body[name] for name in ("temperature", "seed", "priority", "model")} == {
        "temperature": 0.5, "seed": 7, "priority": "background", "model": "other",
    }  # fmt: skip
    assert not {"top_p", "top_k", "min_p", "max_tokens", "tools"} & set(body)
    page.until("document.querySelector('#where').textContent.includes('it continues text')")
    # the next conversation begins with them
    page.click("#new")
    page.click("#open-settings")
    assert page.value("document.querySelector('#set-system').value") == "Be brief."
    assert page.value("document.querySelector('#lane').value") == "background"
    page.press("Escape")


# the daemon has no such model
ANSWERS_LOADS = """
(() => {
  const real = window.fetch;
  window.fetch = async (path, options) => {
    if (path !== "/models/load") return real(path, options);
    window.sent.push(JSON.parse(options.body));
    return Response.json({});
  };
})();
"""


def test_the_menu_tells_states_and_loads_the_model_that_is_chosen(page: Page) -> None:
    models = [
        {"id": "model", "status": {"value": "loaded"}},
        {"id": "other", "status": {"value": "unloaded"}},
        {"id": "search", "status": {"value": "loaded"}, "role": "embed"},
    ]
    page.open({"/v1/models": {"data": models}})
    page.until("document.querySelectorAll('#model option').length === 2")
    labels = page.value("[...document.querySelectorAll('#model option')].map(e => e.label)")
    assert labels == ["model", "other (unloaded)"]
    page.value(ANSWERS_LOADS)
    for name in ("other", "model"):
        page.value(f"document.querySelector('#model').value = '{name}'")
        page.value("document.querySelector('#model').dispatchEvent(new Event('change'))")
    assert page.value("window.sent") == [{"model": "other"}]


def test_tool_calls_are_shown_and_take_results(page: Page) -> None:
    page.click("#open-settings")
    page.write("#set-tools", "[1]")
    page.click("#settings .main")
    assert page.shown("#settings")  # refused: these are no tools
    page.write("#set-tools", json.dumps([TOOL]))
    page.click("#settings .main")
    page.ask("call it")
    page.answered()
    assert page.sent()["tools"] == [TOOL]
    assert page.text(".call summary") == ["Calls read_file"]
    (arguments,) = page.text(".call pre")
    assert json.loads(arguments) == CALL["arguments"]
    page.write(".results textarea", "it has 42 lines")
    page.click(".results button")
    page.answered(2)
    assert page.said()[-1] == "It has 42 lines."
    roles = [each["role"] for each in page.sent()["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert page.text(".tool summary") == ["Result of read_file"]


def test_files_go_with_a_question_as_text(page: Page, tmp_path: Path) -> None:
    text, other = tmp_path / "notes.txt", tmp_path / "data.bin"
    text.write_text("The words of the file: ```größe```", encoding="utf-8")
    other.write_bytes(b"\x89PNG\r\n\0\0")
    page.pick("#pick", text, other)
    page.until("document.querySelector('#files .chip')")
    assert page.text("#files .error") == ["data.bin is not text"]
    page.ask("What is it?")
    page.answered()
    assert page.said() == ["What is it?", "That file I know."]
    content = page.sent()["messages"][0]["content"]
    assert content == f"What is it?\n\nnotes.txt\n````\n{text.read_text('utf-8')}\n````"
    assert page.text(".user .chip")[0].startswith("notes.txt, ")
    assert not page.shown("#files")


def test_a_picture_goes_with_a_question(page: Page, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    shot.write_bytes(b"\x89PNG\r\n\0\0")
    page.pick("#pick", shot)
    page.until("document.querySelector('#files .chip')")
    page.ask("What is it?")
    page.answered()
    url = "data:image/png;base64," + base64.b64encode(shot.read_bytes()).decode()
    assert page.sent()["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"},
    ]  # fmt: skip
    assert page.text(".user .chip")[0].startswith("shot.png, ")


def test_what_fails_is_said_and_not_asked_again(page: Page) -> None:
    page.ask("too long " * 2000)
    page.answered()
    (error,) = page.text(".assistant .error")
    assert "8192" in error
    page.browser.events.clear()  # the browser's own word of the refusal
    page.ask("another question")
    page.answered(2)
    assert [each["content"] for each in page.sent()["messages"]] == ["another question"]
