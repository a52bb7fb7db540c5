"""Every option of the daemon, once: flags, environment, file keys and docs all come from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from umaserve.config.kinds import (
    Adapters,
    Bandwidth,
    Bytes,
    Choice,
    Duration,
    HttpAddress,
    Kind,
    KvType,
    Names,
    Number,
    Path,
    PolicyName,
    PolicyParts,
    SocketPath,
    Switch,
    TcpAddress,
    Whole,
)

SECTIONS = (
    "model",
    "ipc",
    "limits",
    "scheduler",
    "qos.interactive",
    "qos.background",
    "metrics",
    "logging",
)

MiB = 1024 * 1024
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Option:
    """An option of the configuration.

    ``default`` is written as a user would write it.  Documentation has ``shown`` instead where the
    default is a measured or a chosen value.
    """

    name: str  # field of Config (kv_type sets two)
    flag: str
    env: str
    section: str  # empty: no file key
    key: str
    kind: Kind
    default: Any
    help: str
    shown: str = ""

    @property
    def where(self) -> str:
        return f"[{self.section}] {self.key}"


_AUTO = (("auto", 0),)

# a table: one option a paragraph
# fmt: off
OPTIONS: tuple[Option, ...] = (
    # the model and where it runs
    Option("model", "--model", "UMA_MODEL", "model", "path", Path("REF", "a path or a name"), "",
           "GGUF file to serve, or a name from `umaserve models`, such as hf:OWNER/REPO:QUANT or "
           "ollama:NAME; demo is the bundled model; may be given again: the first is the default",
           "what was chosen before, else the bundled model"),
    Option("models_memory", "--models-memory", "UMA_MODELS_MEMORY", "model", "models_memory",
           Bytes(MiB, 1 << 50, (("auto", 0),), "SIZE|auto"), 0,
           "memory for all models: weights, KV caches, recurrent states", "what is free"),
    Option("idle_unload_s", "--idle-unload", "UMA_IDLE_UNLOAD", "model", "idle_unload",
           Duration(auto=True), "auto",
           "time without a request after which a model leaves memory; its next request loads it",
           "15m with several models, off with one"),
    Option("load_on_demand", "--load-on-demand", "UMA_LOAD_ON_DEMAND", "model", "load_on_demand",
           Switch(), True,
           "load a model when a request names it: a configured model, or without an API key any "
           "that `umaserve models` lists"),
    Option("n_ctx", "--n-ctx", "UMA_N_CTX", "model", "n_ctx",
           Whole(16, 1 << 24, _AUTO, "N|auto"), 0,
           "KV cells shared by all sessions; may exceed the model's trained length, which bounds "
           "each session; auto: as memory allows, at most that length times --parallel", "auto"),
    Option("n_seq", "--parallel", "UMA_N_SEQ", "model", "parallel", Whole(1, 256), 8,
           "sequences decoding at once"),
    Option("n_batch", "--n-batch", "UMA_N_BATCH", "model", "n_batch", Whole(1, 1 << 20, _AUTO), 0,
           "most tokens of one batch; at least --parallel", "by backend"),
    Option("n_ubatch", "--n-ubatch", "UMA_N_UBATCH", "model", "n_ubatch", Whole(1, 1 << 20, _AUTO),
           0, "most tokens computed at once", "by backend"),
    Option("threads", "--threads", "UMA_THREADS", "model", "threads", Whole(1, 1024, _AUTO), 0,
           "CPU threads", "measured"),
    Option("backend", "--backend", "UMA_BACKEND", "model", "backend",
           Choice(("auto", "metal", "vulkan", "cuda", "hip", "cpu")), "auto",
           "the backend; auto takes the best that was built"),
    Option("gpu_layers", "--gpu-layers", "UMA_GPU_LAYERS", "model", "gpu_layers",
           Whole(0, 10000, (("all", -1),)), -1, "layers kept on the GPU", "all"),
    Option("use_mmap", "--mmap", "UMA_USE_MMAP", "model", "mmap", Switch(), True,
           "map the weights instead of reading them"),
    Option("use_mlock", "--mlock", "UMA_USE_MLOCK", "model", "mlock", Switch(), False,
           "keep the weights from being paged out"),
    Option("experts_used", "--experts-used", "UMA_EXPERTS_USED", "model", "experts_used",
           Whole(1, 1024, (("model", -1),)), -1,
           "experts that a token uses in a mixture of experts; fewer are faster and give other, "
           "mostly worse answers", "the model's"),
    Option("pretouch", "--pretouch", "UMA_PRETOUCH", "model", "pretouch", Switch(), False,
           "touch weights, tables and buffers at start, against page faults in requests"),
    Option("kv_type", "--kv-type", "UMA_KV_TYPE", "model", "kv_type", KvType(), "f16",
           "precision of the KV cache: q8 = q8_0, q6 = 6 bits a value (q5_1), q5 = q5_0, q4 = "
           "q4_0; K:V sets keys and values apart"),
    Option("kv_pack", "--kv-pack", "UMA_KV_PACK", "model", "kv_pack",
           Choice(("token-major", "head-major")), "token-major",
           "layout of V in the cache; head-major is V transposed: no flash attention, f16 V only"),
    # where clients come in
    Option("socket", "--socket", "UMA_SOCK", "ipc", "socket", SocketPath(), "/tmp/uma.sock",
           "Unix socket to listen on, mode 0600; clients without a path look for "
           "$XDG_RUNTIME_DIR/uma.sock first"),
    Option("ipc", "--ipc", "UMA_IPC", "ipc", "ipc", Choice(("uds",)), "uds",
           "kind of the local transport"),
    Option("http", "--http", "UMA_HTTP", "ipc", "http", HttpAddress(), "off",
           "serve HTTP here, for clients of OpenAI, Anthropic, Ollama and llama-server; unset, a "
           "daemon in a terminal has 127.0.0.1:8080"),
    Option("api_key_file", "--api-key-file", "UMA_API_KEY_FILE", "ipc", "api_key_file",
           Path("FILE"), "",
           "file with the API keys of HTTP, each in a line `NAME KEY` or `NAME KEY admin`; needed "
           "where other machines can ask", "none"),
    Option("tls_cert", "--tls-cert", "UMA_TLS_CERT", "ipc", "tls_cert", Path("FILE"), "",
           "certificate of HTTP, with its chain; PEM", "none"),
    Option("tls_key", "--tls-key", "UMA_TLS_KEY", "ipc", "tls_key", Path("FILE"), "",
           "the certificate's key, readable by nobody else; PEM without a passphrase", "none"),
    Option("insecure_http", "--insecure-http", "UMA_INSECURE_HTTP", "ipc", "insecure_http",
           Switch(), False,
           "allow plain HTTP where other machines can ask, as behind a proxy with TLS"),
    Option("allow_image_urls", "--allow-image-urls", "UMA_ALLOW_IMAGE_URLS", "ipc",
           "allow_image_urls", Switch(), False,
           "fetch pictures that HTTP requests name by address, from public servers"),
    Option("allow_host", "--allow-host", "UMA_ALLOW_HOST", "ipc", "allow_host",
           Names("NAME", "names of hosts, with commas between"), "",
           "names of this machine in HTTP requests, beside numbers and localhost",
           "none"),
    Option("allow_origin", "--allow-origin", "UMA_ALLOW_ORIGIN", "ipc", "allow_origin",
           Names("ORIGIN", "origins such as http://localhost:3000, with commas between"), "",
           "web pages that may ask by HTTP", "none"),
    Option("model_dir", "--model-dir", "UMA_MODEL_DIR", "ipc", "model_dir",
           Names("DIR", "folders, with commas between", paths=True), "",
           "folders whose models HTTP may load, and `umaserve models` lists", "none"),
    Option("agent_check", "--agent-check", "UMA_AGENT_CHECK", "ipc", "agent_check", TcpAddress(),
           "off", "answer HAProxy's agent check here: the share of new work that a load balancer "
           "should send"),
    Option("max_connections", "--max-connections", "UMA_MAX_CONNECTIONS", "ipc", "max_connections",
           Whole(1, 1 << 20), 1024, "connections open at once; by HTTP as many again"),
    # limits
    Option("max_sessions", "--max-sessions", "UMA_MAX_SESSIONS", "limits", "max_sessions",
           Whole(1, 4096), 32, "requests that the engine holds at once"),
    Option("max_queue", "--max-queue", "UMA_MAX_QUEUE", "limits", "max_queue", Whole(0, 1000000),
           256, "requests that wait behind them"),
    Option("max_prompt_bytes", "--max-prompt-bytes", "UMA_MAX_PROMPT_BYTES", "limits",
           "max_prompt_bytes", Bytes(1, 1024 * MiB, _AUTO), 0, "longest prompt",
           "what the context can hold: 8 bytes a token, 64KiB or more"),
    Option("max_frame_bytes", "--max-frame-bytes", "UMA_MAX_FRAME_BYTES", "limits",
           "max_frame_bytes", Bytes(64, 1024 * MiB, _AUTO), 0, "longest frame a client may send",
           "the longest prompt and 64KiB more"),
    Option("max_tokens", "--max-tokens", "UMA_MAX_TOKENS", "limits", "max_tokens",
           Whole(1, 1 << 24, _AUTO), 0, "most tokens one request may ask for", "the context"),
    Option("cache_ram", "--cache-ram", "UMA_CACHE_RAM", "limits", "cache_ram",
           Bytes(MiB, 1 << 50, (("auto", -1), ("off", 0)), "SIZE|auto|off"), -1,
           "memory for the prefix cache; auto: a quarter of the machine's at most, and a "
           "sixteenth stays free", "auto"),
    Option("cache_dir", "--cache-dir", "UMA_CACHE_KV_DIR", "limits", "cache_dir",
           Path("DIR|off"), "off",
           "folder that keeps the prefix cache beyond the daemon's life; it holds prompts"),
    Option("cache_disk", "--cache-disk", "UMA_CACHE_DISK", "limits", "cache_disk",
           Bytes(MiB, 1 << 50, (), "SIZE"), 8192 * MiB,
           "bytes that this folder may take", "8GiB"),
    Option("idle_timeout_s", "--idle-timeout", "UMA_IDLE_TIMEOUT_SEC", "limits", "idle_timeout_s",
           Number(0, 365 * _DAY_S, "S"), 300.0,
           "seconds a connection may be silent with nothing in flight; 0 = for ever"),
    Option("max_unsent_bytes", "--max-unsent-bytes", "UMA_MAX_UNSENT_BYTES", "limits",
           "max_unsent_bytes", Bytes(1, 1024 * MiB), MiB,
           "answer bytes kept for a client that does not read; then it is cut off"),
    Option("drain_s", "--drain-s", "UMA_DRAIN_SEC", "limits", "drain_s", Number(0, _DAY_S, "S"),
           30.0, "seconds running requests get to finish at shutdown"),
    # the scheduler
    Option("bmt_budget", "--bmt-budget", "UMA_BMT_BUDGET", "scheduler", "bmt_budget", Bandwidth(),
           "auto", "bytes the ticks may move per second"),
    Option("tick_budget_ms", "--tick-budget-ms", "UMA_TICK_BUDGET_MS", "scheduler",
           "tick_budget_ms", Number(0.1, 60000, "MS"), 50.0,
           "ceiling of a tick's wall time unless an interactive stream sets a lower one"),
    Option("max_merge", "--max-merge", "UMA_MAX_MERGE", "scheduler", "max_merge", Whole(0, 256), 0,
           "decoding sessions merged per tick; 0 = no cap"),
    Option("policy", "--policy", "UMA_POLICY", "scheduler", "policy", PolicyName(),
           "guarded",
           "planner of the ticks: guarded, greedy, or MODULE:FUNCTION of your own"),
    Option("without", "--without", "UMA_WITHOUT", "scheduler", "without", PolicyParts(), "",
           "parts of the policy to switch off, for comparison; docs/POLICY.md names them", "none"),
    Option("prefill_threads", "--prefill-threads", "UMA_PREFILL_THREADS", "scheduler",
           "prefill_threads", Whole(0, 1024, (("auto", -1),)), -1,
           "cores that compute prompts beside decoding, on the processor; 0 = no prompts beside "
           "the ticks, on an accelerator either", "auto"),
    Option("speculate", "--speculate", "UMA_SPECULATE", "scheduler", "speculate",
           Choice(("auto", "ngram", "draft", "mtp", "off")), "auto",
           "drafts of tokens, from earlier text, by --draft-model or by the model's own heads "
           "(MTP); auto: as many as gain time now; ngram: wherever the text repeats; draft: "
           "always, by the draft model; mtp: always, by the heads"),
    Option("draft_model", "--draft-model", "UMA_DRAFT_MODEL", "scheduler", "draft_model",
           Path("REF", "a path or a name"), "",
           "a smaller model of the same vocabulary that drafts tokens; a REF as of --model",
           "none"),
    Option("mmproj", "--mmproj", "UMA_MMPROJ", "model", "mmproj",
           Path("FILE|auto|off", "a path, auto or off"), "auto",
           "projector of pictures, a GGUF file; auto: mmproj*.gguf beside the model; pictures take "
           "uma-eyes (`umaserve build --with-eyes`)"),
    Option("lora", "--lora", "UMA_LORA", "model", "lora", Adapters(), "",
           "LoRA adapters of the model, GGUF files; requests choose by `lora`, else have all, each "
           "with its SCALE (1)", "none"),
    Option("hang_timeout_s", "--hang-timeout", "UMA_HANG_TIMEOUT_SEC", "scheduler",
           "hang_timeout_s", Number(0, _DAY_S, "S"), 0.0,
           "seconds of a tick after which the engine counts as hung, or 20 times its longest tick "
           "if that is more; 0 = 30, and 120 before the first tick", "learned"),
    Option("latency_cap", "--latency-cap", "UMA_LATENCY_CAP", "qos.interactive", "latency_cap",
           Number(1, 100), 1.2, "ceiling of the interactive p95 beside background, times its "
           "baseline"),
    Option("reading_ms", "--reading-ms", "UMA_READING_MS", "qos.interactive", "reading_ms",
           Number(1, 1000, "MS"), 25.0,
           "mean milliseconds between tokens that no reader notices; awaited prompts may slow "
           "streams to it"),
    # what is shown and kept
    Option("scorecard", "--scorecard", "UMA_SCORECARD", "metrics", "scorecard", Path("FILE.csv"),
           "", "write the scorecard's columns to this CSV file", "none"),
    Option("scorecard_interval_s", "--scorecard-interval", "UMA_SCORECARD_INTERVAL_SEC", "metrics",
           "scorecard_interval_s", Number(0.1, _DAY_S, "S"), 5.0, "seconds between two rows of it"),
    Option("trace", "--trace", "UMA_TRACE", "metrics", "trace", Path("FILE.jsonl"), "",
           "write one JSON line per tick to this file", "none"),
    Option("metrics_max_bytes", "--metrics-max-bytes", "UMA_METRICS_MAX_BYTES", "metrics",
           "metrics_max_bytes", Bytes(0, 1 << 50), 256 * MiB,
           "size at which scorecard or trace is moved to FILE.1 and begun again; 0 = never",
           "256MiB"),
    Option("metrics_keep", "--metrics-keep", "UMA_METRICS_KEEP", "metrics", "metrics_keep",
           Whole(0, 1000), 3, "moved files kept of each: FILE.1, FILE.2, ..."),
    Option("dashboard", "--dashboard", "UMA_DASHBOARD", "metrics", "dashboard",
           Choice(("auto", "on", "off")), "auto",
           "the live screen; auto shows it when standard output is a terminal"),
    Option("log_level", "--log-level", "UMA_LOG_LEVEL", "logging", "log_level",
           Choice(("debug", "info", "warn", "error"), (("warning", "warn"),)), "info",
           "least important kind of line that is logged"),
    Option("log_json", "--log-json", "UMA_LOG_JSON", "logging", "log_json", Switch(), False,
           "log one JSON object per line"),
    Option("core_dumps", "--core-dumps", "UMA_CORE_DUMPS", "logging", "core_dumps", Switch(), False,
           "allow core files, which hold prompts, and debuggers, as the system's settings do"),
    Option("config", "--config", "UMA_CONFIG", "", "", Path("FILE"), "",
           "file with these settings: TOML, or YAML where its name ends in .yaml or .yml", "none"),
)
# fmt: on

BY_NAME = {option.name: option for option in OPTIONS}
BY_ENV = {option.env: option for option in OPTIONS}

# read elsewhere: by the build, by tests, and UMA_DEBUG=1 as another name for --log-level debug
OTHER_ENV = (
    "UMA_CACHE_DIR", "UMA_STATE_DIR", "UMA_LLAMA_BUILD", "UMA_DEBUG", "UMA_CHECK_CELLS",
)  # fmt: skip
