"""Messages about one request: its order (`Submit`), its changes, its end."""

from __future__ import annotations

import msgspec

from umaserve.chat.questions import Thoughts
from umaserve.wire.states import LANE_INTERACTIVE


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Per-request sampling settings; the defaults are those of the socket protocol.

    ``seed`` is 64-bit.  Where the client gave none, the front draws one.  So a request that is
    moved to another engine goes on with the same random numbers.
    """

    temperature: float = 0.8
    top_k: int = 40  # 0 = off
    top_p: float = 0.95  # 1.0 = off
    min_p: float = 0.05  # 0.0 = off
    typical_p: float = 1.0  # 1.0 = off
    repeat_penalty: float = 1.0  # 1.0 = off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64  # 0 = off, -1 = whole history
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added logit); -inf bans
    seed: int = 0
    logprobs: int = -1  # -1 = none; 0..20 alternatives per token
    post_sampling_probs: bool = False  # these are of what the settings leave, not of the model's
    ignore_eos: bool = False
    xtc_probability: float = 0.0  # 0.0 = off
    xtc_threshold: float = 0.1  # above 0.5 = off
    dry_multiplier: float = 0.0  # 0.0 = off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64  # 0 = off, -1 = whole history
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # 0 = off, 2 = mirostat v2
    mirostat_tau: float = 5.0  # bits
    mirostat_eta: float = 0.1


SCHEMA, REGEX, GRAMMAR = "schema", "regex", "grammar"
NOTHING = "nothing"


class Budget(msgspec.Struct, frozen=True):
    """How many ``tokens`` thoughts may have.

    Behind them, ``last_words`` and then the word for the end of thoughts are forced.
    """

    thoughts: Thoughts
    tokens: int
    last_words: str = ""


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Constraint that an answer has to follow.

    ``text`` is a JSON schema, a regular expression, or a grammar in GBNF.  A grammar with
    ``triggers`` binds from the first trigger on, and describes the trigger too.  ``begun`` is the
    part of the constrained text that stands in the prompt already.  ``is_made``: made by uma-chat,
    not by a client.  ``thoughts`` may come first, and are not constrained.  ``calls`` is a grammar
    that the answer may follow instead.  ``budget`` limits thoughts; with `NOTHING` as kind, only
    the budget binds.
    """

    kind: str
    text: str
    triggers: tuple[str, ...] = ()
    begun: str = ""
    is_made: bool = False
    thoughts: Thoughts | None = None
    calls: str = ""
    budget: Budget | None = None


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Embeddings of a part of a picture: ``rows`` of float32 in the file at ``path``.

    ``at`` is where they begin in the file, in bytes.  ``columns``: width of the grid in which they
    lie (M-RoPE), else 0.  ``positions``: their number, one a row, or fewer in a grid.
    ``non_causal``: all see each other, so one ubatch has to compute them.
    """

    path: str
    at: int
    rows: int
    positions: int
    columns: int
    non_causal: bool


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """Picture in front of the character ``at`` of a prompt's text.

    ``tokens`` stand for it: text tokens around its runs, and a pseudo token for each position of
    these.  Pseudo tokens are below `NOT_YET`; equal ones are of equal pictures.
    """

    at: int
    tokens: list[int]
    runs: tuple[Run, ...]

    @property
    def more_cells(self) -> int:
        """KV cells that it takes beyond its positions."""
        return sum(run.rows - run.positions for run in self.runs)


class Submit(msgspec.Struct, tag="submit", omit_defaults=True):
    """Start a request in a free row of the table.

    ``prompt`` is text for the engine to tokenise.  Texts of control tokens in it are control
    tokens, but for ``plain``: spans, in characters, where somebody has only written such a text.
    Or ``tokens`` are ids that are known already: the prompt's ``n_prompt`` ids and those generated
    by an engine that is gone.  ``max_tokens`` counts generated tokens, the resumed ones included; 0
    means whatever the context leaves.  ``strict_fit``: the client named ``max_tokens``, so prompt +
    max_tokens beyond the context is an error rather than a shorter answer.  ``add_special``: with
    the tokens that the model puts around a text; of these, ``add_bos`` is about the start token
    (``None``: once).  To ``tokens`` only ``add_bos`` True adds anything.  ``isolate``: the request
    was in a batch that killed an engine, so it decodes alone until it has proved harmless.
    ``deterministic``: its numbers may not depend on other requests, so it is computed apart.
    ``prompt_logprobs``: with so many alternatives, `PromptLogprobs` tell of every token of the
    prompt before the row waits; -1 = none.  ``max_tokens`` of `NO_TOKENS`: nothing is generated.
    ``came_ns``: when it came, on the monotonic clock; 0 = now.  ``turn``: a lane's requests with
    smaller turns go first, those with equal turns in order of arrival.  ``program``: the program
    that asks, as a number; ``weight``: of its share.

    ``auto``: nobody has named the lane, and the policy may change it.  ``domain``: whose texts may
    begin as this one does and share what was computed; None: nobody's.
    ``session``: it names the session that it belongs to, which will come back.
    ``lora``: the numbers of adapters and their scales; without any, those of `Start`.
    ``speculate``: tokens may be drafted for it.  ``shifts``: where its context is full, `Shift` may
    follow.  Of ``tokens`` whose context was shifted before, those are given that are still in it.
    ``n_prompt`` is their number less all that were generated.
    ``left``: of the generated tokens, those that are not in it any more.  A constraint has to
    follow them all the same.
    """

    serial: int
    slot: int
    lane: int = LANE_INTERACTIVE
    prompt: str | None = None
    plain: tuple[tuple[int, int], ...] = ()
    tokens: list[int] | None = None
    n_prompt: int = 0
    max_tokens: int = 0
    strict_fit: bool = False
    parse_special: bool = True
    add_special: bool = True
    add_bos: bool | None = None
    isolate: bool = False
    deterministic: bool = False
    latency_cap: float = 0.0  # times the baseline; 0 = the daemon's
    target_ttft_ms: float = 0.0
    target_tbt_ms: float = 0.0
    came_ns: int = 0
    turn: int = 0
    program: int = 0
    weight: float = 1.0
    prompt_logprobs: int = -1
    auto: bool = False
    domain: str | None = None
    session: bool = False
    shifts: bool = False
    left: list[int] = []
    pictures: tuple[Picture, ...] = ()  # in the order of the prompt; ``tokens`` has their tokens
    speculate: bool = True
    lora: tuple[tuple[int, float], ...] = ()
    sampling: Sampling = Sampling()
    constraint: Constraint | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether what nobody waits for may be given up for it."""
        return self.lane == LANE_INTERACTIVE and self.prompt_logprobs < 0


NO_TOKENS = -1


class Cancel(msgspec.Struct, tag="cancel"):
    """End a request at the next token boundary; its row becomes DONE with reason CANCEL.

    ``is_urgent``: its prompt is being computed, which may be given up.
    """

    serial: int
    is_urgent: bool = False


class SetLane(msgspec.Struct, tag="lane"):
    serial: int
    lane: int

    @property
    def is_urgent(self) -> bool:
        """As of `Submit`."""
        return self.lane == LANE_INTERACTIVE


class Shift(msgspec.Struct, tag="shift"):
    """Everything of a row that is FULL was read: it is to go on.

    Behind the first ``kept`` tokens ``dropped`` go, and the others move down.  The column
    ``shifts`` says when that is done.  ``max_tokens`` counts all generated ones, as in `Submit`.
    """

    serial: int
    kept: int
    dropped: int
    max_tokens: int


class Release(msgspec.Struct, tag="release"):
    """The front has read everything of a row that has ended; the engine marks it FREE."""

    serial: int
    slot: int


class Rejected(msgspec.Struct, tag="rejected"):
    """Not taken; the row stays free.  ``code`` is one of the protocol's error codes.

    ``n_prompt`` are the tokens of a prompt that is too long.
    """

    serial: int
    code: str
    message: str
    n_prompt: int = 0


class Failed(msgspec.Struct, tag="failed"):
    """Why rows went to DONE with reason ERROR (``llama_decode`` failed for this batch)."""

    serials: list[int]
    code: str
    message: str


class PromptLogprobs(msgspec.Struct, tag="prompt_logprobs"):
    """Log-probabilities of the prompt's tokens from ``at`` on; its first token has none.

    ``last``: no more tokens follow.  ``top`` are (id, logprob), most likely first.
    """

    serial: int
    at: int
    tokens: list[int]
    logprobs: list[float | None]
    top: list[list[tuple[int, float]]]
    last: bool
