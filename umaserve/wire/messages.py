"""Messages between front and engine over the control socket.

A message is a msgspec struct, encoded as MessagePack, behind a ``uint32`` little-endian length.
Tokens do not travel here: they lie in the session table (``umaserve.wire.table``).  For each tick
that changed something, the engine writes one byte to the wake pipe.  Both processes come from the
same installation, so there is no version negotiation.

Long: one short class for each message.
"""

from __future__ import annotations

import msgspec

from umaserve.chat.questions import Thoughts as Thoughts
from umaserve.models.identity import ModelIdentity
from umaserve.texts import path_of, printable_in, sendable_path
from umaserve.wire.states import LANE_BACKGROUND as LANE_BACKGROUND
from umaserve.wire.states import LANE_INTERACTIVE as LANE_INTERACTIVE


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


class Adapter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A LoRA adapter of a model, and its ``scale`` where a request names none.

    ``task_name`` and ``prompt_prefix`` are what its file says of itself.  ``n_bytes``: memory that
    it takes.
    """

    name: str
    path: str
    scale: float = 1.0
    task_name: str = ""
    prompt_prefix: str = ""
    n_bytes: int = 0


# --- front -> engine -----------------------------------------------------------------------------


class Start(msgspec.Struct, tag="start", frozen=True):
    """The first message: what to load and how.  Sizes of the mappings follow from it too.

    ``n_batch``, ``n_ubatch`` and ``n_threads`` of 0 leave the choice to the engine; ``gpu_layers``
    of -1 means all.  ``type_k`` and ``type_v`` are ggml names (``f16``, ``q8_0``, ...).
    """

    model_path: str
    n_slots: int
    n_ctx: int  # KV cells; 0 = what memory bears
    n_seq: int
    n_positions: int = 0  # of one session that the table has room for; 0 = as n_ctx
    earlier_states: int = -1  # of a recurrent sequence, at most; -1 = as many as memory bears
    n_batch: int = 0
    n_ubatch: int = 0
    n_threads: int = 0
    n_threads_batch: int = 0  # for ticks of several tokens; 0 = as n_threads
    backend: str = "auto"
    gpu_layers: int = -1
    use_mmap: bool = True
    use_mlock: bool = False
    experts_used: int = 0  # that a token uses, of a mixture; 0 = the model's own number
    pretouch: bool = False  # touch weights, tables and scratch before the first request
    type_k: str = "f16"
    type_v: str = "f16"
    head_major: bool = False  # V transposed: no flash attention
    flash_attn: str = "auto"  # "on", "off"; auto = libllama's own choice
    max_merge: int = 0  # decoding sessions per tick; 0 = no cap
    tick_budget_ms: float = 50.0
    latency_cap: float = 1.2
    reading_ms: float = 25.0
    bmt_budget: str = "auto"
    cache_bytes: int = -1  # of memory for beginnings of texts; -1 = by what is free, 0 = none
    cache_dir: str = ""  # where they are kept beyond the engine's life; empty = nowhere
    cache_disk: int = 0  # bytes of it
    policy: str = "guarded"  # or module:function
    # where drafts come from: "ngram", "draft", "mtp", "off"; auto = all, by what they gain
    speculate: str = "auto"
    draft_model: str = ""  # the path of the model that drafts
    mmproj: str = ""  # the path of the projector of pictures
    adapters: tuple[Adapter, ...] = ()
    without: tuple[str, ...] = ()  # parts of the policy that are switched off
    sampling_threads: int = -1  # besides the loop's own; -1 leaves the choice to the engine
    prefill_threads: int = -1  # cores for prompts aside; -1 = chosen, 0 = none
    probe: bool = True  # measure what ticks cost, in pauses, where that is not known
    probe_first: bool = False  # before the engine is ready; for tests that need to know when
    log_level: str = "info"
    core_dumps: bool = False  # else a crash leaves no core file, which would hold prompts
    encodes: bool = False  # texts to vectors alone, also with a model that could generate

    @property
    def positions(self) -> int:
        """Tokens of one session that a row of the table has room for."""
        return min(n for n in (self.n_ctx, self.n_positions) if n > 0)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Embeddings of a part of a picture: ``rows`` of float32 in the file at ``path``.

    ``at`` is where they begin in the file, in bytes.  ``columns``: width of the grid in which they
    lie (M-RoPE), else 0.  ``positions``: how many they take: one a row, or fewer in a grid.
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


class GiveWay(msgspec.Struct, tag="give_way"):
    """Somebody waits for another model's engine, or nobody does any more (not ``on``)."""

    on: bool


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


class Tokenize(msgspec.Struct, tag="tokenize", omit_defaults=True):
    """Texts to tokens; `Tokens` is the answer.  ``add_special`` holds for ``text`` alone."""

    ref: int
    text: str
    add_special: bool = False
    parse_special: bool = True
    more: list[str] = []


class Embed(msgspec.Struct, tag="embed", omit_defaults=True):
    """Texts, or their token ids, to vectors; `Embedded` is the answer.

    ``query``: the texts are documents, each of which gets a score for this query instead.
    ``truncate``: a text that is too long loses its end, else it is refused.  A model that generates
    takes one text at a time.
    """

    ref: int
    texts: list[str | list[int]]
    query: str | None = None
    truncate: bool = False


class Forget(msgspec.Struct, tag="forget"):
    """Nobody waits for the answer to `Tokenize` or `Embed` any more."""

    ref: int


class AskCache(msgspec.Struct, tag="ask_cache"):
    """Request for the prefix cache's contents and last lookups; `CacheReport` is the answer."""

    ref: int


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Leave now: free the model and exit 0.  (End of file on the control socket means the same.)"""


# --- engine -> front -----------------------------------------------------------------------------


class LoadProgress(msgspec.Struct, tag="progress"):
    fraction: float  # 0..1
    stage: str = "weights"  # "start", "weights", "context", "pretouch", "warmup"


class Ready(msgspec.Struct, tag="ready", omit_defaults=True):
    """The model is loaded, a token was decoded, and requests may come."""

    model_path: str
    model_name: str
    description: str
    architecture: str
    n_vocab: int
    n_ctx: int  # KV cells shared by all sessions
    n_ctx_train: int  # positions of one session that the model was trained for; 0 = unknown
    n_seq: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    backend: str  # of the library that was built: cpu, vulkan, metal, ...
    device: str  # where the layers are, as libllama names it
    library_version: str
    model_bytes: int
    kv_bytes: int
    n_params: int
    chat_template: str | None = None
    tool_template: str | None = None  # of models that have another one where there are tools
    bos: str = ""
    eos: str = ""
    adds_bos: bool = False  # the tokeniser puts it before a text
    adds_eos: bool = False
    # Tokens around a gap that is to be filled, where the model has them: prefix, suffix, middle,
    # repo, file.  There is bos too, where the tokeniser puts it before a text.
    gap: dict[str, int] = {}
    chat_program: str = ""  # uma-chat, of the build that the engine runs
    why_no_chat: str = ""  # where there is none
    load_ms: float = 0.0  # model and context alone
    start_ms: float = 0.0  # from process start to ready
    identity: ModelIdentity | None = None  # of the files that were loaded
    device_free: int = -1  # bytes that the accelerator has left; -1: none, or it does not say
    n_embd: int = 0  # numbers of a vector
    pooling: str = ""  # how a text's tokens become one vector: mean, cls, last; rank: a score
    generates: bool = True  # an encoder alone does not
    off: str = ""  # a sentence: what this model cannot have, and why; empty where it can have all
    why_no_shift: str = ""  # why no context can be shifted; empty where it can
    why_no_drafts: str = ""  # why no tokens can be drafted with this model; empty where they can
    draft_model: str = ""  # the path of the model that drafts for it; empty where none does
    heads: str = ""  # whether its own heads (MTP) draft, or why not; empty: nobody asked
    eyes_program: str = ""  # uma-eyes, of the build that the engine runs
    why_no_eyes: str = "this model reads text only"  # why it sees no pictures; empty where it does
    n_embd_input: int = 0  # numbers of an embedding that it takes in place of a token
    adapters: tuple[Adapter, ...] = ()
    state_bytes: int = 0  # recurrent states of all sequences, with earlier ones
    draft_bytes: int = 0  # weights and KV cells of the draft model; KV cells of own heads

    @property
    def n_positions(self) -> int:
        """Positions that one session has at most."""
        return positions_of_one(self.n_ctx, self.n_ctx_train)

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights, adapters, the draft model, KV cells and recurrent states."""
        beside = self.draft_bytes + sum(each.n_bytes for each in self.adapters)
        return self.model_bytes + beside + self.kv_bytes + self.state_bytes

    @property
    def role(self) -> str:
        """Role besides or instead of generating: "rerank", "embed"; empty for a model of texts."""
        if self.pooling == "rank":
            return "rerank"
        return "" if self.generates else "embed"

    @property
    def is_base(self) -> bool:
        """Whether it continues texts and was not made for conversations."""
        return self.generates and not self.chat_template


def positions_of_one(n_ctx: int, n_ctx_train: int) -> int:
    """Positions that one session has at most, of ``n_ctx`` cells that all share.

    A model has no use for positions beyond those that it was trained for; 0 = nobody knows.
    """
    return min(n_ctx, n_ctx_train) if n_ctx_train > 0 else n_ctx


class Threads(msgspec.Struct, tag="threads"):
    """The engine chose other numbers of threads than ``Ready`` said, whose names these are."""

    n_threads: int
    n_threads_batch: int


class LoadFailed(msgspec.Struct, tag="load_failed"):
    """The model cannot be served; the engine exits with status 3 after this."""

    message: str


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


class Tokens(msgspec.Struct, tag="tokens", omit_defaults=True):
    """``tokens`` of all texts together; ``counts`` are those of each."""

    ref: int
    tokens: list[int]
    error: str = ""
    counts: list[int] = []


class Embedded(msgspec.Struct, tag="embedded", omit_defaults=True):
    """``vectors``: float32, one of length 1 for each text; of documents, one score for each.

    ``n_tokens``: of all texts.  Else ``error`` says why text number ``at`` has no vector, with its
    ``code``.  A text that is too long has ``n_tokens``, of which there may be ``most``.
    """

    ref: int
    vectors: bytes = b""
    n_tokens: int = 0
    at: int = 0
    most: int = 0
    code: str = ""
    error: str = ""


class CachedOf(msgspec.Struct):
    """Contents of the prefix cache for one domain (`Submit.domain`), in memory and on disk."""

    domain: str
    entries: int = 0
    tokens: int = 0
    bytes: int = 0
    disk_bytes: int = 0


class CachedText(msgspec.Struct):
    """A text of which all ``tokens`` are kept; other texts may share some of its ``bytes``.

    ``begins``: its first tokens, none of a private one.
    """

    domain: str
    tokens: int
    bytes: int
    hits: int
    begins: list[int]


class CacheAnswer(msgspec.Struct):
    """Result of a prompt's lookup in the prefix cache.

    ``known`` of the prompt's tokens were kept when it began; ``cached`` of its tokens were copied.
    ``before`` are the last of the known tokens.  Behind these, ``kept`` follow in another text and
    ``wanted`` in the prompt.  All three are ids, and empty where the text is private.  ``domain``
    is None where the request did not ask the cache.
    """

    serial: int
    domain: str | None
    prompt: int
    cached: int
    known: int = 0
    before: list[int] = []
    kept: list[int] = []
    wanted: list[int] = []


class CacheReport(msgspec.Struct, tag="cache_report", omit_defaults=True):
    """``why_off``: why nothing is kept; empty where something may be.  Bytes are of memory.

    ``domains`` have the largest first, ``texts`` the most used, ``prompts`` the newest.
    """

    ref: int
    why_off: str = ""
    entries: int = 0
    bytes: int = 0
    most_bytes: int = 0
    domains: list[CachedOf] = []
    texts: list[CachedText] = []
    prompts: list[CacheAnswer] = []


PRIVATE = "\0"  # in a domain: in front of the session that it is of
ADAPTED = "\0lora\0"  # in a domain: in front of the digest of a set of adapters
ALONE = 2 * PRIVATE  # a domain that begins so is of one parked request, and told to nobody


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


class Log(msgspec.Struct, tag="log"):
    level: str  # "debug", "info", "warn", "error"
    text: str


ToEngine = (
    Start | Submit | Cancel | SetLane | GiveWay | Shift | Release | Tokenize | Embed | Forget
    | AskCache | Shutdown
)  # fmt: skip
ToFront = (
    LoadProgress | Ready | Threads | LoadFailed | Rejected | Failed | Tokens | Embedded
    | CacheReport | PromptLogprobs | Log
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_front = msgspec.msgpack.Decoder(ToFront)


def encode(message: ToEngine | ToFront) -> bytes:
    """Length-prefixed bytes of one message.

    A path of the file system that is no UTF-8 arrives as it was in ``Start.model_path``, and with
    U+FFFD in texts for people.
    """
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        texts = {k: printable_in(v) for k, v in msgspec.structs.asdict(message).items()}
        if isinstance(message, Start):
            texts["model_path"] = sendable_path(message.model_path)
        body = _encoder.encode(type(message)(**texts))
    return len(body).to_bytes(4, "little") + body


NUDGE = (0).to_bytes(4, "little")  # an empty message: wakes the engine and says nothing


class Channel:
    """Bytes in, messages out, for one direction of the control socket (sans-I/O)."""

    def __init__(self, side: str) -> None:
        self._decode = (_to_engine if side == "engine" else _to_front).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[ToEngine | ToFront]:
        """Append ``data`` and return every message that is complete, in order."""
        buffer = self._buffer
        buffer += data
        out: list[ToEngine | ToFront] = []
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "little")
            end = start + 4 + size
            if len(buffer) < end:
                break
            if not size:
                start = end
                continue
            message = self._decode(bytes(buffer[start + 4 : end]))
            if isinstance(message, Start):
                path = path_of(message.model_path)
                message = msgspec.structs.replace(message, model_path=path)
            out.append(message)
            start = end
        if start:
            del buffer[:start]
        return out
