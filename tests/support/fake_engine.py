"""An engine for tests that must force a fault: a real process that speaks the real contract.

It loads nothing and echoes: the tokens of a prompt are its UTF-8 bytes, and the answer is
``answer(prompt, n)``, one byte a token.  Directives in the prompt make it fail at an index of the
answer:

    [abort@5] [exit@5] [hang@5] [error@5]     every time it gets there
    [abort-once@5] [hang-once@5]              the first time; a mark lies beside the model file
    [stop@5] [reject]                         end of text; refused
    [prompt@5]                                so many ticks pass before the first token, each with
                                              an equal part of the prompt
    [draft@5]                                 so many tokens are drafted a tick; one is accepted

The text ``[stall]`` to be tokenised makes it stop for good, outside a tick.

The model's file name makes the load fail (``load-fails``, ``load-aborts``), hang
(``load-hangs``) or slow (``load-slow``), as does a file MODEL.broken beside it.  ``FAKE_TEMPLATE``
is the model's chat template (empty: it has none), ``FAKE_TICK_MS`` the time of a tick.
``FAKE_SAYS`` is the whole of every answer; ``FAKE_SCRIPT`` is a
`tests.support.agent_script.Script` that says what to answer.
``FAKE_REPLIES`` is a file with a JSON list of pairs: the first pair whose first text is in the
prompt has the whole answer for its second, and directives in prompts are nothing.
``FAKE_STEPS`` names a pipe: with it, each tick waits for a byte of that.
``FAKE_BUDGET`` is a budget of bytes a second, more than which its ticks use while there are any.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import re
import select as readiness
import signal
import socket
import sys
import threading
import time

from tests.support.agent_script import Script
from umaserve.llama.builds import select
from umaserve.models.identity import identify
from umaserve.wire import messages as m
from umaserve.wire import table as t

ALPHABET = ("a", "b", "é", "€", "😀", " ", "q", "z\n")
EOS = 256
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.content == 'refuse' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
)
SAYS = os.environ.get("FAKE_SAYS", "").encode()
REPLIES = os.environ.get("FAKE_REPLIES", "")
BUDGET = int(os.environ.get("FAKE_BUDGET", "0"))
SCRIPT = Script.read(os.environ["FAKE_SCRIPT"]) if "FAKE_SCRIPT" in os.environ else None
DIRECTIVE = re.compile(r"\[([a-z-]+)(?:@(\d+))?\]")


def answer(prompt: str, n: int) -> bytes:
    """The first ``n`` bytes of what this engine says to ``prompt``."""
    out, block = b"", hashlib.sha256(prompt.encode()).digest()
    while len(out) < n:
        block = hashlib.sha256(block).digest()
        out += "".join(ALPHABET[b % len(ALPHABET)] for b in block).encode()
    return out[:n]


def reply(prompt: str) -> bytes | None:
    """The whole answer to ``prompt``, where the test says what it is."""
    if SCRIPT:
        return SCRIPT.answer(prompt).encode()
    if not REPLIES:
        return SAYS or None
    with open(REPLIES, encoding="utf-8") as file:
        for seen, said in json.load(file):
            if seen in prompt:
                return said.encode()
    return b"(there is no reply to this)"


def abort() -> None:
    """As libllama does it, with the threads that an engine has beside the loop."""
    for _ in range(30):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    text = "/build/ggml/src/ggml.c:4711: GGML_ASSERT(fake != NULL) failed"
    print(text, file=sys.stderr, flush=True)
    os.abort()


class Row:
    def __init__(self, message: m.Submit, ids: list[int], n_prompt: int) -> None:
        self.serial, self.slot, self.isolate = message.serial, message.slot, message.isolate
        self.sampling = message.sampling
        self.resume = len(ids)
        prompt = bytes(ids[:n_prompt]).decode("utf-8", "replace")
        self.directives = {name: int(at or 0) for name, at in DIRECTIVE.findall(prompt)}
        said = reply(prompt)
        self.answer = answer(prompt, 4096) if said is None else said
        self.all_prompt_ticks = self.prompt_ticks = self.directives.pop("prompt", 0)
        self.drafts = self.directives.pop("draft", 0) if message.speculate else 0
        if REPLIES:
            self.directives.clear()
        if said is not None:
            self.directives["stop"] = len(said)
        self.cancelled = False


class Engine:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.control = socket.socket(fileno=arguments.control)
        self.channel = m.Channel("engine")
        self.wake_fd = arguments.wake
        self.inbox: list = []
        start = self.receive()
        assert isinstance(start, m.Start)
        self.start = start
        spec = t.TableSpec(start.n_slots, start.positions + 1)
        self.table = t.SessionTable(spec, arguments.table)
        self.pieces_fd = arguments.pieces
        self.rows: dict[int, Row] = {}
        self.turn = 0
        self.tick_s = float(os.environ.get("FAKE_TICK_MS", "1")) / 1000
        steps = os.environ.get("FAKE_STEPS")
        self.steps = [os.open(steps, os.O_RDWR | os.O_NONBLOCK)] if steps else []

    # --- messages ---------------------------------------------------------------------------------

    def receive(self):
        while not self.inbox:
            data = self.control.recv(1 << 16)
            if not data:
                sys.exit(0)
            self.inbox += self.channel.feed(data)
        return self.inbox.pop(0)

    def send(self, message) -> None:
        self.control.sendall(m.encode(message))

    def wake(self) -> None:
        try:
            os.write(self.wake_fd, b"x")
        except BlockingIOError:
            pass  # a full pipe wakes as well

    def load(self) -> None:
        name = os.path.basename(self.start.model_path)
        if "load-slow" in name:
            for i in range(10):
                self.send(m.LoadProgress(i / 10))
                time.sleep(0.1)
        if "load-hangs" in name:
            time.sleep(600)
        if "load-aborts" in name:
            abort()
        if "load-fails" in name or os.path.exists(self.start.model_path + ".broken"):
            self.send(m.LoadFailed(f"{name} is broken on purpose"))
            sys.exit(3)
        import numpy as np

        pieces = t.PieceTable(self.pieces_fd, 257)
        offsets = np.array([*range(257), 256], np.int32)
        none = np.zeros(258, np.int32), np.empty(0, np.uint8)
        pieces.write((offsets, np.arange(256, dtype=np.uint8)), none)
        self.table.header.cells_total = n_ctx = self.start.n_ctx or self.start.positions
        build = select()
        self.send(
            m.Ready(
                model_path=self.start.model_path,
                model_name=name.removesuffix(".gguf"),
                description="a fake",
                architecture="fake",
                n_vocab=257,
                n_ctx=n_ctx,
                n_ctx_train=n_ctx,
                n_seq=self.start.n_seq,
                n_batch=512,
                n_ubatch=512,
                n_threads=1,
                n_threads_batch=1,
                backend="cpu",
                device="CPU",
                library_version="0",
                model_bytes=1,
                kv_bytes=1,
                n_params=1,
                chat_template=os.environ.get("FAKE_TEMPLATE", TEMPLATE) or None,
                bos="<s>",
                eos="</s>",
                chat_program=str(build and build.chat_program or ""),
                why_no_chat=build.why_no_chat if build else "there is no build",
                identity=identify(self.start.model_path),
                why_no_drafts="it is a fake",
            )
        )

    def handle(self, message) -> None:
        match message:
            case m.Submit():
                self.submit(message)
            case m.Cancel():
                if message.serial in self.rows:
                    self.rows[message.serial].cancelled = True
            case m.SetLane():
                if message.serial in self.rows:
                    self.table.lane[self.rows[message.serial].slot] = message.lane
            case m.Release():
                if self.table.serial[message.slot] == message.serial:
                    self.table.state[message.slot] = t.FREE
                    self.table.serial[message.slot] = 0
            case m.Tokenize():
                self.table.header.tokenizing = message.ref
                if message.text == "[wait]":
                    time.sleep(0.5)
                if message.text == "[crash]":
                    os.abort()
                if message.text == "[stall]":
                    time.sleep(600)
                self.table.header.tokenizing = 0
                found = [list(text.encode()) for text in [message.text, *message.more]]
                self.send(m.Tokens(message.ref, sum(found, []), "", [len(f) for f in found]))
            case m.AskCache():
                self.send(m.CacheReport(message.ref, "a fake keeps nothing"))
            case m.Shutdown():
                sys.exit(0)
        self.table.header.handled += 1

    def submit(self, message: m.Submit) -> None:
        table, slot = self.table, message.slot
        assert table.state[slot] == t.FREE, "the front gave a row that is in use"
        if message.tokens is not None:
            ids, n_prompt = message.tokens, message.n_prompt
        else:
            assert message.prompt is not None
            if "[tokenizer-abort]" in message.prompt:
                table.serial[slot], table.in_tick[slot] = message.serial, t.IN_TOKENIZER
                for row in self.rows.values():  # decoded at that moment
                    table.in_tick[row.slot] = 1
                os.abort()
            ids = list(message.prompt.encode())
            n_prompt = len(ids)
        if max(ids, default=0) > EOS:
            self.send(m.Rejected(message.serial, "E_PROTO_003", "a token is not in the vocabulary"))
            return
        room = self.start.positions - n_prompt
        if message.prompt and "[reject]" in message.prompt:
            self.send(m.Rejected(message.serial, "E_PROTO_003", "rejected on purpose"))
            return
        if room < 1 or (message.strict_fit and message.max_tokens > room):
            text = f"{n_prompt} prompt tokens do not fit {self.start.positions} cells"
            self.send(m.Rejected(message.serial, "E_LIMIT_003", text, n_prompt))
            return
        row = Row(message, ids, n_prompt)
        table.tokens[slot, :] = -1
        table.tokens[slot, : len(ids)] = ids
        table.n_prompt[slot], table.n_tokens[slot], table.n_past[slot] = n_prompt, len(ids), 0
        table.max_tokens[slot] = min(message.max_tokens or room, room)
        table.lane[slot], table.isolate[slot] = message.lane, message.isolate
        table.drafted[slot] = table.accepted[slot] = 0
        table.t_submit_ns[slot] = time.monotonic_ns()
        table.t_admit_ns[slot] = 0
        table.reason[slot] = t.REASON_NONE
        table.serial[slot] = message.serial
        table.state[slot] = t.WAITING
        self.rows[message.serial] = row

    # --- ticks ------------------------------------------------------------------------------------

    def run(self) -> None:
        self.load()
        while True:
            while self.inbox:
                self.handle(self.inbox.pop(0))
            waits = None if self.steps or not self.rows else 0
            inputs = [self.control, *(self.steps if self.rows else ())]
            ready = readiness.select(inputs, [], [], waits)[0]
            if self.control in ready:
                data = self.control.recv(1 << 16)
                if not data:
                    return
                self.inbox += self.channel.feed(data)
                continue
            for step in self.steps:
                os.read(step, 1)
            self.tick()

    def tick(self) -> None:
        table, header = self.table, self.table.header
        ended = [row for row in self.rows.values() if row.cancelled]
        for row in ended:
            self.end(row, t.REASON_CANCEL)
        running = [r for r in self.rows.values() if table.state[r.slot] == t.RUNNING]
        for row in self.rows.values():
            if table.state[row.slot] == t.WAITING and len(running) < self.start.n_seq:
                table.state[row.slot] = t.RUNNING
                table.t_admit_ns[row.slot] = table.t_admit_ns[row.slot] or time.monotonic_ns()
                running.append(row)
        isolated = [row for row in running if row.isolate]
        batch = running
        if isolated:  # alone, in turn with the others
            self.turn += 1
            batch = isolated[:1] if self.turn % 2 else [r for r in running if not r.isolate]
        if not batch:
            if ended:
                self.wake()
            return
        start_ns = time.monotonic_ns()
        header.tick_start_ns, header.busy = start_ns, t.BUSY_DECODE
        for row in batch:
            table.in_tick[row.slot] = 1
        time.sleep(self.tick_s)
        for row in batch:
            self.misbehave(row)
        for row in batch:
            table.in_tick[row.slot] = 0
            self.token(row)
            if row.drafts:
                self.draft(row)
        end_ns = time.monotonic_ns()
        header.busy, header.tick_start_ns = t.BUSY_IDLE, 0
        header.heartbeat_ns = end_ns
        header.longest_tick_ns = max(header.longest_tick_ns, end_ns - start_ns)
        header.decode_ns_total += end_ns - start_ns
        header.tick_ns_total += end_ns - start_ns
        header.decode_rows_total += len(batch)
        header.decode_tokens += len(batch)
        at = header.tick_ring_at
        ms = (end_ns - start_ns) / 1e6
        row = table.ticks[at % t.TICK_RING]
        row["end_s"], row["wall_ms"], row["decode_ms"] = end_ns / 1e9, ms, ms
        row["decode_rows"] = len(batch)
        header.tick_ring_at = at + 1
        header.ticks += 1
        header.bmt_budget_bps = BUDGET
        header.bmt_bytes_total += int(4 * BUDGET * ms / 1e3)
        self.wake()

    def misbehave(self, row: Row) -> None:
        index = int(self.table.n_tokens[row.slot] - self.table.n_prompt[row.slot])
        for name, at in row.directives.items():
            if at != index:
                continue
            if name.endswith("-once"):
                mark = f"{self.start.model_path}.{name}.{row.serial}"
                if os.path.exists(mark):
                    continue
                open(mark, "w").close()
                name = name.removesuffix("-once")
            if name == "abort":
                abort()
            if name == "exit":
                os._exit(7)
            if name == "hang":
                time.sleep(600)

    def draft(self, row: Row) -> None:
        """As if so many tokens had been drafted, and the first were right."""
        table, header, slot = self.table, self.table.header, row.slot
        table.drafted[slot] += row.drafts
        header.draft_tokens += row.drafts
        if row.serial in self.rows:
            self.token(row)
            table.accepted[slot] += 1
            header.draft_accepted += 1
            header.decode_tokens += 1

    def token(self, row: Row) -> None:
        table, slot = self.table, row.slot
        if row.prompt_ticks:
            row.prompt_ticks -= 1
            parts = row.all_prompt_ticks + 1
            table.n_past[slot] = table.n_prompt[slot] * (parts - 1 - row.prompt_ticks) // parts
            return
        n_prompt, n_tokens = int(table.n_prompt[slot]), int(table.n_tokens[slot])
        index = n_tokens - n_prompt
        if row.directives.get("stop") == index:
            self.end(row, t.REASON_STOP)
            return
        if row.directives.get("error") == index:
            self.send(m.Failed([row.serial], "E_RUNTIME_001", "failed on purpose"))
            self.end(row, t.REASON_ERROR)
            return
        now_ns = time.monotonic_ns()
        table.token_ns[slot, n_tokens] = now_ns
        if row.sampling.logprobs >= 0:
            table.logprob[slot, n_tokens] = -0.5
            table.top_ids[slot, n_tokens, :] = range(97, 117)
            table.top_logprobs[slot, n_tokens, :] = -1.5
        table.tokens[slot, n_tokens] = row.answer[index]
        table.n_tokens[slot] = n_tokens + 1
        if row.isolate and n_tokens + 1 >= row.resume + 2:
            row.isolate = False
            table.isolate[slot] = 0
        if index + 1 >= int(table.max_tokens[slot]):
            self.end(row, t.REASON_LENGTH)

    def end(self, row: Row, reason: int) -> None:
        self.table.reason[row.slot] = reason
        self.table.state[row.slot] = t.DONE
        del self.rows[row.serial]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    parser = argparse.ArgumentParser()
    for name in ("control", "wake", "table", "pieces"):
        parser.add_argument(f"--{name}", type=int, required=True)
    Engine(parser.parse_args()).run()


if __name__ == "__main__":
    main()
