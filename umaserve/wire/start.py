"""Messages of an engine's start: its order (`Start`), and facts of the loaded model (`Ready`)."""

from __future__ import annotations

import msgspec

from umaserve.models.identity import ModelIdentity


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
    draft_bytes: int = 0  # weights and KV cells of the draft model; cells and buffers of own heads

    @property
    def n_positions(self) -> int:
        """Positions that one session has at most."""
        return positions_of_one(self.n_ctx, self.n_ctx_train)

    @property
    def memory_bytes(self) -> int:
        """Bytes of weights, adapters, draft model or heads, KV cells and recurrent states."""
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
