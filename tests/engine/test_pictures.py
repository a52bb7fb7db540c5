"""Pictures in conversations, with the real library, uma-eyes and a random projector."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.gateway import post
from tests.support.http_client import ask, port_of
from tests.support.pictures import (
    ROWS,
    build_with_eyes,
    make_projector,
    model_with_eyes,
    png,
    url_of,
)
from tests.support.ports import free_port
from tests.support.real_daemon import real
from tests.support.server_harness import DaemonProcess
from umaserve.assets import demo_model_path
from umaserve.gateway.translate.pictures import MARKER
from umaserve.models.gguf.faults import check_gguf

FIRST, SECOND = png(64, 48, 3), png(48, 64, 11)


@pytest.fixture(
    scope="module",
    params=[
        ("gemma3-micro", "gemma3"), ("qwen2vl-micro", "qwen2.5vl_merger"),
        ("qwen35-micro", "qwen2.5vl_merger"),
    ],
    ids=lambda of: of[0],
)  # fmt: skip
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """Models with a sliding window, with M-RoPE, and a hybrid with M-RoPE."""
    build_with_eyes()
    folder = tmp_path_factory.mktemp("eyes")
    model = model_with_eyes(folder / "models", *request.param)
    with real(folder, model=model, http="127.0.0.1:0", n_seq=4) as daemon:
        yield daemon


def of_bundled_model(folder: Path) -> str:
    """A projector for the bundled model: what that says does not hang on near ties."""
    build_with_eyes()
    about = check_gguf(demo_model_path())
    width = about.metadata[f"{about.architecture}.embedding_length"]
    assert isinstance(width, int)
    return str(make_projector.write_projector(folder / "eyes.gguf", width))


@pytest.fixture(scope="module", params=["bundled", "qwen2vl-micro"])
def plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """Models whose memory can be cut anywhere, so also inside of a picture.

    A picture has 256 embeddings, or 12 in a grid, which are decoded in two parts.
    """
    folder = tmp_path_factory.mktemp("plain")
    settings: dict[str, Any] = {"http": "127.0.0.1:0", "n_seq": 1}
    if request.param == "bundled":
        settings["mmproj"] = of_bundled_model(folder)
    else:
        build_with_eyes()
        settings["model"] = model_with_eyes(folder / "models", request.param, "qwen2.5vl_merger")
        settings["n_ubatch"] = 8
    with real(folder, **settings) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder = tmp_path_factory.mktemp("several")
    mmproj = of_bundled_model(folder)
    with real(
        folder, mmproj=mmproj, http="127.0.0.1:0", n_seq=5, allow_image_urls=True
    ) as daemon:
        yield daemon


def picture(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(data)}}


def said(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [
        {"type": "text", "text": part} if isinstance(part, str) else part for part in parts
    ]}  # fmt: skip


def asked(daemon: DaemonProcess, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, **more}
    reply = post(port_of(daemon), "/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return dict(reply.json)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_the_answer_depends_on_the_picture(daemon: DaemonProcess) -> None:
    answers = [asked(daemon, [said("What is it?", picture(each))]) for each in (FIRST, SECOND)]
    plain = asked(daemon, [said("What is it?")])
    assert not any("uma_unread" in each for each in answers)
    assert len({text_of(each) for each in (*answers, plain)}) == 3
    again = asked(daemon, [said("What is it?", picture(FIRST))], cache_prompt=False)
    assert text_of(again) == text_of(answers[0])
    for each in answers:
        assert each["usage"]["prompt_tokens"] >= plain["usage"]["prompt_tokens"] + ROWS


def test_the_next_turn_computes_little(daemon: DaemonProcess) -> None:
    """The picture stays in the history, and is in the cells of the turn before."""
    history = [said("Look: " + "and again " * 30, picture(png(80, 40, 7)), "What is it?")]
    first = asked(daemon, history)
    history += [{"role": "assistant", "content": text_of(first)}, said("And what else?")]
    second = asked(daemon, history)
    usage = second["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    new = usage["prompt_tokens"] - first["usage"]["prompt_tokens"]
    assert usage["prompt_tokens"] - cached <= new + 16


def test_the_next_daemon_encodes_and_computes_little(tmp_path: Path) -> None:
    """With a folder for the cache, the projector is not even loaded for a picture that is known."""
    settings: dict[str, Any] = {
        "mmproj": of_bundled_model(tmp_path), "http": "127.0.0.1:0", "n_seq": 1,
        "cache_dir": str(tmp_path / "cache"),
    }  # fmt: skip
    messages = [said("Look: " + "and again " * 30, picture(png(80, 40, 7)), "What is it?")]
    with real(tmp_path, **settings) as daemon:
        first = asked(daemon, messages)
        assert eyes_of(daemon)
    with real(tmp_path, **settings) as daemon:
        again = asked(daemon, messages)
        assert not eyes_of(daemon)
    usage = again["usage"]
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] <= 16
    assert text_of(again) == text_of(first)


def eyes_of(daemon: DaemonProcess) -> list[psutil.Process]:
    """Processes of uma-eyes that a daemon has."""
    children = psutil.Process(daemon.process.pid).children(recursive=True)
    return [child for child in children if child.name() == "uma-eyes"]


def test_a_file_that_is_no_picture_is_left_out_in_words(daemon: DaemonProcess) -> None:
    answer = asked(daemon, [said(picture(b"\x89PNG\r\n\x1a\n and no more"), "What is it?")])
    assert answer["uma_unread"] == ["image_url"]
    body = {"messages": [said(picture(FIRST[:-40]), "x")], "max_tokens": 1}
    reply = post(port_of(daemon), "/v1/chat/completions", body, **{"X-UMA-Images": "refuse"})
    assert reply.status == 400 and b"damaged" in reply.body


def test_addresses_are_fetched_where_allowed_and_never_of_this_network(
    several: DaemonProcess, daemon: DaemonProcess
) -> None:
    """The daemon itself is there, and would answer."""
    url = f"http://127.0.0.1:{port_of(several)}/"
    message = said({"type": "image_url", "image_url": {"url": url}}, "What is it?")
    assert asked(several, [message])["uma_unread"] == ["image_url"]
    for asked_of, why in (
        (several, "127.0.0.1 is not on the public internet"),
        (daemon, "addresses are not fetched"),
    ):
        body, refuse = {"messages": [message]}, {"X-UMA-Images": "refuse"}
        reply = post(port_of(asked_of), "/v1/chat/completions", body, **refuse)
        assert reply.status == 400 and why in reply.json["error"]["message"], reply.body


def test_all_dialects_show_the_same_picture(daemon: DaemonProcess) -> None:
    """The same conversation has the same prompt, so the same greedy answer."""
    data = base64.b64encode(FIRST).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    wanted = text_of(asked(daemon, [said("What is it?", picture(FIRST))]))
    said_by = {
        "/v1/messages": ({"messages": [said("What is it?", {"type": "image", "source": source})],
                          "max_tokens": 12}, lambda r: r["content"][0]["text"]),
        "/v1/responses": ({"input": [{"role": "user", "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": url_of(FIRST)}]}], "max_output_tokens": 12},
            lambda r: r["output"][-1]["content"][0]["text"]),
        "/api/chat": ({"messages": [{"role": "user", "content": "What is it?", "images": [data]}],
                       "options": {"num_predict": 12, "temperature": 0}, "stream": False},
                      lambda r: r["message"]["content"]),
    }  # fmt: skip
    for path, (body, read) in said_by.items():
        reply = post(port_of(daemon), path, {"temperature": 0, **body})
        assert reply.status == 200 and read(reply.json) == wanted, path
    with daemon.client() as client:
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "data": data}]
        client.send(id="p", messages=[{"role": "user", "content": parts}], max_tokens=12,
                    temperature=0, stream=False)  # fmt: skip
        assert client.answer("eos")["text"] == wanted


def raw(daemon: DaemonProcess, text: str, *pictures: bytes, **more: Any) -> dict[str, Any]:
    """Ask for what follows a prompt with llama-server's markers."""
    return completed(port_of(daemon), text, pictures, **more)


def completed(port: int, text: str, pictures: Sequence[bytes], **more: Any) -> dict[str, Any]:
    data = [base64.b64encode(each).decode() for each in pictures]
    prompt = {"prompt_string": text, "multimodal_data": data}
    body = {"prompt": prompt, "n_predict": 12, "temperature": 0, **more}
    reply = post(port, "/completion", body)
    assert reply.status == 200, reply.body
    return dict(reply.json)


def test_a_prompt_without_a_template_has_pictures_too(daemon: DaemonProcess) -> None:
    """The prompt of a conversation, sent as text with a marker, has the same greedy answer."""
    wanted = asked(daemon, [said("What is it?", picture(FIRST))])
    marked = [said(f"What is it?{MARKER}")]
    text = post(port_of(daemon), "/apply-template", {"messages": marked}).json["prompt"]
    answer = raw(daemon, text, FIRST)
    assert answer["content"] == text_of(wanted) != raw(daemon, text, SECOND)["content"]
    assert answer["tokens_evaluated"] == wanted["usage"]["prompt_tokens"]
    assert answer["prompt"] == text and "uma_unread" not in answer
    props = json.loads(ask(daemon, "/props").body)
    assert props["media_marker"] == MARKER
    body = {"prompt": "What is it?", "raw": True, "images": [base64.b64encode(FIRST).decode()],
            "options": {"num_predict": 12, "temperature": 0}, "stream": False}  # fmt: skip
    told = post(port_of(daemon), "/api/generate", {"model": "", **body}).json
    assert told["response"] == raw(daemon, f"{MARKER}What is it?", FIRST)["content"]
    two = raw(daemon, f"{MARKER} and {MARKER}.", FIRST, b"no picture")
    assert two["uma_unread"] == ["image"] and two["content"]
    refused = {"prompt": {"prompt_string": MARKER, "multimodal_data": ["bm8="]}}
    reply = post(port_of(daemon), "/completion", refused, **{"X-UMA-Images": "refuse"})
    assert reply.status == 400 and b"picture" in reply.body


def test_several_pictures_beside_a_chat(several: DaemonProcess) -> None:
    """Streams with pictures at once, and one without: all get what they get alone.

    The shapes of ticks move logits, so the chances of the first tokens are compared, not texts.
    """
    shown: list[list[Any]] = [["One:", data_part(png(32, 32, seed)), "end"] for seed in (2, 5, 9)]
    shown += [["Two:", data_part(FIRST), "and", data_part(SECOND), "end"], ["None."]]
    fields: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "stream": False, "logprobs": 9}
    with several.client() as client:

        def chances(*numbers: int) -> dict[int, dict[str, float]]:
            for number in numbers:
                client.send(id=str(number), messages=[said(*shown[number])], cache_prompt=False,
                            **fields)  # fmt: skip
            ends = [client.answer("eos") for _ in numbers]
            told = {int(end["id"]): end["logprobs"][0]["top_logprobs"] for end in ends}
            return {
                number: {str(each["text"]): each["logprob"] for each in top}
                for number, top in told.items()
            }

        alone = [chances(number)[number] for number in range(len(shown))]
        together = chances(*range(len(shown)))
    for number, wanted in enumerate(alone):
        both = wanted.keys() & together[number].keys()
        assert len(both) > 4 and all(
            abs(together[number][text] - wanted[text]) < 1.5 for text in both
        ), number
    assert len({tuple(each) for each in alone}) > 3, "the pictures change what may follow"


def test_penalties_and_constraints_go_with_pictures(daemon: DaemonProcess) -> None:
    more = {"repeat_penalty": 1.3, "penalty_last_n": -1, "dry_multiplier": 0.8,
            "dry_penalty_last_n": -1, "frequency_penalty": 0.5, "max_tokens": 30}  # fmt: skip
    answer = asked(daemon, [said(picture(FIRST), "Say it again, again, again.")], **more)
    assert answer["usage"]["completion_tokens"] > 0
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    answer = asked(daemon, [said(picture(FIRST), "How many?")], response_format=form)
    assert int(text_of(answer)) is not None


def test_the_model_is_said_to_see(daemon: DaemonProcess) -> None:
    port = port_of(daemon)
    assert json.loads(ask(daemon, "/props").body)["modalities"]["vision"] is True
    assert "vision" in post(port, "/api/show", {"model": ""}).json["capabilities"]
    (entry,) = json.loads(ask(daemon, "/v1/models").body)["data"]
    assert entry["input_modalities"] == ["text", "image"]


def run_cli(
    daemon: DaemonProcess, *words: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "umaserve", *words, "--socket", daemon.path]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)


def test_a_picture_from_the_command_line(daemon: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(FIRST)
    options = ("--temp", "0", "--max-tokens", "12", "--no-stream", "-p", "What is it?")
    done = run_cli(daemon, "generate", *options, "--image", str(tmp_path / "a.png"))
    wanted = text_of(asked(daemon, [said(picture(FIRST), "What is it?")]))
    assert done.returncode == 0 and done.stdout.strip() == wanted.strip()
    done = run_cli(daemon, "generate", *options, "--raw", "--image", str(tmp_path / "a.png"))
    told = raw(daemon, f"{MARKER}What is it?", FIRST)["content"]
    assert done.returncode == 0 and done.stdout.strip() == told.strip()
    assert run_cli(daemon, "generate", *options, "--image", str(tmp_path / "b")).returncode == 2
    lines = f"/image {tmp_path / 'a.png'}\nWhat is it?\n"
    done = run_cli(daemon, "chat", "--temp", "0", "--max-tokens", "12", given=lines)
    assert done.returncode == 0 and wanted.strip() in done.stdout


def data_part(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data": base64.b64encode(data).decode()}


def test_a_picture_that_the_cache_has_half_of_is_computed_whole(plain: DaemonProcess) -> None:
    """What is kept of a text ends anywhere, as another text may part from it there."""
    for words in range(225, 250, 3):
        messages = [said("and " * words, picture(FIRST), "What is it?")]
        alone = text_of(asked(plain, messages, cache_prompt=False))
        kept = [text_of(asked(plain, messages)) for _ in range(2)]
        other = [said("and " * words, picture(FIRST), "Where is it?")]
        asked(plain, other)
        assert [*kept, text_of(asked(plain, messages))] == [alone] * 3


def test_a_request_that_gives_way_goes_on_with_its_picture(plain: DaemonProcess) -> None:
    """An interactive request takes the one sequence from one in the background."""
    parts = [{"type": "text", "text": "Say much of it: "}, data_part(FIRST)]
    messages = [{"role": "user", "content": parts}]
    fields: dict[str, Any] = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
    with plain.client() as client:
        alone = client.generate(None, messages=messages, **fields).text
        client.ask("b", None, messages=messages, priority="background", **fields)
        client.wait_tokens("b", 3)
        assert client.generate("x", "c", max_tokens=2, priority="interactive").eos
        assert not client.results["b"].ended, "it was parked, and comes back"
        # later on, other numbers of the ticks' shapes may decide between near ties
        assert client.finish("b")[0].text[:200] == alone[:200]


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "prompt"])
def test_a_request_goes_on_in_the_next_engine(plain: DaemonProcess, is_chat: bool) -> None:
    parts = [data_part(SECOND), {"type": "text", "text": "Say much of it."}]
    messages = [{"role": "user", "content": parts}]
    fields: dict[str, Any] = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
    prompt, more = (None, {"messages": messages}) if is_chat else (parts, {})
    with plain.client() as client:
        alone = client.generate(prompt, **fields, **more).text
        client.ask("b", prompt, **fields, **more)
        client.wait_tokens("b", 1)
        os.kill(plain.engine_pid(), signal.SIGKILL)
        assert client.finish("b")[0].text == alone


NEAR_TIE = 0.2  # of log-probabilities
CHAT = {"max_tokens": 24, "logprobs": True, "top_logprobs": 5}
RAW = {"n_predict": 24, "n_probs": 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ("gemma3-micro", "gemma3"), ("micro-151k", "gemma3"), ("micro-151k", "janus_pro"),
        ("qwen2vl-micro", "qwen2.5vl_merger"), ("qwen3vl-micro", "qwen3vl_merger"),
        ("qwen35-micro", "qwen2.5vl_merger"),
    ],
)  # fmt: skip
def test_the_answers_are_those_of_llama_server(tmp_path: Path, shape: str, kind: str) -> None:
    """The same files, pictures and conversation: greedy text is the same.

    A picture of Janus-Pro has 256 embeddings, and is computed in parts.
    """
    build = build_with_eyes()
    if not build.has_peers:
        pytest.skip("llama-server is not built (build_llama.py --with-peers)")
    model = model_with_eyes(tmp_path / "models", shape, kind)
    photo = (build.eyes_dir / "test-1.jpeg").read_bytes()
    shown = [[said("What is it?", picture(each))] for each in (FIRST, SECOND, photo)]
    shown.append([said("Compare", picture(FIRST), "with", picture(photo), "and say more.")])
    answer = {"role": "assistant", "content": "It is one."}
    shown.append([*shown[0], answer, said("And this?", picture(SECOND))])
    prompts = [(f"Look: {MARKER}What is it?", [FIRST]), (f"{MARKER}, {MARKER}.", [SECOND, photo])]
    with real(tmp_path, model=model, http="127.0.0.1:0", n_ubatch=100) as daemon:
        ours = [steps_of(asked(daemon, each, **CHAT)) for each in shown]
        ours += [steps_of(raw(daemon, text, *given, **RAW)) for text, given in prompts]
    port = free_port()
    command = [
        build.bin_dir / "llama-server", "-m", model, "--mmproj",
        str(Path(model).parent / "mmproj-f32.gguf"), "--port", str(port), "-c", "2048", "-t", "1",
        "-np", "1", "-ub", "100", "--no-warmup",
    ]  # fmt: skip
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    marked = os.environ | {"LLAMA_MEDIA_MARKER": MARKER}
    with subprocess.Popen(command, env=marked, **quiet) as server:
        try:
            until_s = time.monotonic() + 60
            while not _is_up(port) and time.monotonic() < until_s:
                time.sleep(0.1)
            theirs = []
            for messages in shown:
                body = {"messages": messages, "temperature": 0, **CHAT}
                theirs.append(steps_of(dict(post(port, "/v1/chat/completions", body).json)))
            for text, given in prompts:
                theirs.append(steps_of(completed(port, text, given, **RAW)))
        finally:
            server.kill()
    compared = [check_alike(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    assert min(compared) > 0 and sum(compared) > 12 * len(compared), compared


Steps = list[dict[str, Any]]


def steps_of(answer: dict[str, Any]) -> Steps:
    """The first tokens of an answer that are whole characters, each with the likeliest ones.

    Of several that make a character together, llama-server tells as of one.
    """
    if "choices" in answer:
        found = answer["choices"][0]["logprobs"]["content"]
    else:
        found = answer["completion_probabilities"]
    return list(itertools.takewhile(lambda step: is_text(bytes(step["bytes"])), found))


def is_text(data: bytes) -> bool:
    try:
        return "\ufffd" not in data.decode()
    except UnicodeDecodeError:
        return False


def check_alike(mine: Steps, other: Steps) -> int:
    """Greedy tokens are the same up to a near tie, which other sizes of chunks may decide.

    Return how many were compared.
    """
    for n, (one, two) in enumerate(zip(mine, other, strict=False)):
        if one["id"] != two["id"]:
            likely = {each["id"]: each["logprob"] for each in one["top_logprobs"]}
            assert two["id"] in likely, (n, one, two)
            behind = likely[one["id"]] - likely[two["id"]]
            assert behind <= NEAR_TIE, (n, behind)
            return n + 1
    return min(len(mine), len(other))


def _is_up(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
