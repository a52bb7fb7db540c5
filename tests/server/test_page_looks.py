"""The gateway's page in Chromium by size and colour scheme, and its words about the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.support.gateway import gateway
from tests.support.page import Page, page_of, script_of
from tests.support.ports import free_port
from tests.support.server_harness import DaemonProcess

REPLIES = [
    ("a question", "An answer with `code`.\n\n```\n" + "long " * 60 + "\n```"),
    ("without end", "again " * 1200),
]
NARROW = (390, 820)
SIZES = {390: 844, 820: 1100, 1400: 900}
APP = "an-app-with-a-name-that-is-much-longer-than-its-column"
# lines of text that a word takes, wherever it is shown
LINES = """
[...document.querySelectorAll('td, td small, option')].filter(e => e.checkVisibility()
  && e.childElementCount === 0 && ['interactive', 'background'].includes(e.textContent))
  .map(e => { const range = document.createRange(); range.selectNodeContents(e);
    const box = e.closest('.card').getBoundingClientRect(), own = range.getBoundingClientRect();
    return [e.textContent, range.getClientRects().length, own.right <= box.right] })
"""
GONE = "The daemon is gone. Nothing is lost here: this page looks for it and goes on by itself."


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page_of(tmp_path_factory.mktemp("page"), REPLIES) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", list(SIZES))
def test_the_chat_comes_first_and_nothing_is_cut(
    page: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    page.size(width, SIZES[width], dark)
    page.open()
    page.ask("a question of some words, so that it takes more than one line on a phone")
    page.answered()
    shown = {name: page.shown(name) for name in ("#chat", "#text", "#send", "#figures", "#chats")}
    folded = width in NARROW
    assert shown == {
        "#chat": True, "#text": True, "#send": True, "#figures": not folded, "#chats": not folded,
    }  # fmt: skip
    # nothing reaches beyond the window, but what scrolls in a box of its own
    assert page.value("[document.documentElement.scrollWidth, scrollY]") == [width, 0]
    inside = (
        "[...document.querySelectorAll('header *, #form *, .turn, .code')].filter("
        "e => e.checkVisibility()).map(e => e.getBoundingClientRect()).every("
        f"b => b.left >= 0 && b.right <= {width} && b.bottom <= {SIZES[width]})"
    )
    assert page.value(inside)
    page.browser.picture(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size == (width, SIZES[width])
        histogram = picture.convert("L").histogram()
    dark_pixels = sum(histogram[:64]) / sum(histogram)
    assert dark_pixels > 0.8 if dark else dark_pixels < 0.1


@pytest.mark.parametrize("width", NARROW)
def test_figures_are_unfolded_by_the_keyboard(page: Page, width: int) -> None:
    page.size(width)
    page.open()
    for name in ("chats", "figures"):
        page.value(f"document.querySelector('#open-{name}').focus()")
        page.press("Enter")
        assert page.shown(f"#{name}") and not page.shown("#chat")
        button = f"document.querySelector('#open-{name}')"
        page.until(f"{button}.getAttribute('aria-expanded') === 'true'")
        page.press("Escape")
        assert page.shown("#chat") and not page.shown(f"#{name}")
        assert page.value(f"document.activeElement === {button}")


def test_a_question_is_asked_and_answered_by_the_keyboard_alone(page: Page) -> None:
    page.size(1400)
    page.open()
    page.ask("a question")
    page.answered()
    seen = []
    page.value("document.querySelector('#said').focus()")
    for _ in range(7):
        page.press("Tab")
        seen.append(
            page.value(
                "(e => (e.getAttribute('aria-label') || e.textContent || e.id)"
                ".trim())(document.activeElement)"
            )
        )
    assert seen == [
        "Copy the message", "Edit", "Copy the code", "Code", "Copy the message", "Regenerate",
        "Message",
    ]  # fmt: skip
    # what was pressed goes, and the focus stays where it was
    page.value("document.querySelector('.assistant .foot button:last-of-type').focus()")
    page.press("Enter")
    page.until("document.querySelector('.branch')?.textContent === '2 of 2'")
    page.answered()
    assert page.value("document.activeElement.id") == "said"
    log = "document.querySelector('#said')"
    assert page.value(f"[{log}.role, {log}.getAttribute('aria-label')]") == ["log", "Messages"]
    assert page.value(f"[...{log}.children].map(e => e.firstChild.textContent)") == [
        "You", "Answer",
    ]  # fmt: skip


@pytest.mark.parametrize("width", list(SIZES))
def test_a_lane_breaks_in_no_column(page: Page, width: int) -> None:
    page.size(width)
    row = {"active": 1, "share": 0.5, "p95_ms": 9999.0, "cached": 0.5, "lane": "interactive"}
    ended = {
        "app": APP, "lane": "interactive", "lane_reason": "", "reason": "stop", "age_s": 1,
        "total_ms": 9, "cached_tokens": 118400, "prompt_tokens": 120410, "ttft_ms": 9999.0,
        "tbt_p95_ms": 9999.0, "completion_tokens": 32000,
    }  # fmt: skip
    page.open({"/metrics": {"apps": {APP: row}}, "/requests": {"requests": [ended]}})
    if width in NARROW:
        page.click("#open-figures")
    page.until("!document.querySelector('#recentcard').hidden")
    found = page.value(LINES)
    assert [each[0] for each in found].count("interactive") == 3
    assert all(lines == 1 and inside for _, lines, inside in found), found
    over = "[...document.querySelectorAll('.lanes')].every(e => e.scrollWidth <= e.clientWidth)"
    assert page.value(over)


def ended(age_s: float) -> dict[str, Any]:
    return {"age_s": age_s, "total_ms": 5000, "lane": "interactive", "lane_reason": ""}


@pytest.mark.parametrize(
    ("over", "p95_ms", "requests", "active", "is_red"),
    [
        (1.1, 60, [ended(1), ended(3)], 1, False),
        (1.204, 60, [ended(1), ended(3)], 1, False),  # as it is written: 1.2 of 1.2
        (2.0, 12, [ended(1), ended(3)], 1, False),  # faster than a person reads
        (2.0, 60, [ended(1), ended(20)], 1, False),  # one after the other
        (2.0, 60, [ended(80), ended(81)], 1, False),  # not in this minute
        (2.0, 60, [ended(1), ended(3)], 1, True),
        (2.0, 60, [], 2, True),  # requests of another key
    ],
)
def test_the_gauge_is_red_where_a_promise_was_broken_by_us(
    page: Page, over: float, p95_ms: float, requests: list[Any], active: int, is_red: bool
) -> None:
    told = {"p95_over_baseline": over, "p95_ms": p95_ms, "latency_cap": 1.2}
    told["active_sessions"] = active
    page.open({"/metrics": told, "/requests": {"requests": requests}})
    page.until("document.querySelector('#capnote').textContent")
    assert page.value("document.querySelector('#cap').classList.contains('over')") == is_red
    assert page.value("document.querySelector('#cap').style.width !== '0%'")


def test_a_daemon_that_is_gone_is_told_and_comes_back(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    http = f"127.0.0.1:{free_port()}"
    given = {"n_ctx": 8192, "http": http, "environment": script_of(REPLIES, tmp_path)}
    with Browser(tmp_path) as browser:
        page = Page(browser, f"http://{http}/")
        with DaemonProcess(tmp_path, **given):
            page.open()
            page.ask("a question")
            page.answered()
            assert not page.shown("#gone")
        page.until("document.querySelector('#gone').textContent")
        assert page.text("#gone") == [GONE]
        page.ask("a question while it is gone")
        assert page.value("document.querySelector('#send').disabled")
        assert page.value("document.querySelector('#text').value") == "a question while it is gone"
        with DaemonProcess(tmp_path, **given):
            page.until("document.querySelector('#gone').hidden")
            page.press("Enter")
            page.answered(2)
            assert page.text(".turn .error") == []
            page.value("fetch('/unload', {method: 'POST', body: '{}'}).then(() => 1)")
            page.until("!document.querySelector('#gone').hidden")
            assert page.text("#gone") == ["no model is loaded"]


def test_an_answer_whose_connection_is_lost_keeps_what_came(page: Page) -> None:
    page.size(1400)
    with gateway(page.socket) as port:
        other = Page(page.browser, f"http://127.0.0.1:{port}/")
        other.open()
        other.ask("one without end")
        other.until("document.querySelector('.assistant .text')?.textContent.length > 20")
    other.answered()
    assert other.text(".turn .error") == ["The connection was lost."]
    assert other.said()[1].startswith("again again")


def test_a_gateway_without_its_daemon_says_the_same(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with gateway() as port, Browser(tmp_path) as browser:
        page = Page(browser, f"http://127.0.0.1:{port}/")
        page.open()
        page.until("document.querySelector('#gone').textContent")
        assert page.text("#gone") == [GONE]
