"""Every option of the daemon, once: flags, environment, file keys and docs all come from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from umaserve.config.kinds import (
    ADAPTERS,
    BANDWIDTH,
    HTTP_ADDRESS,
    KV_TYPE,
    PARTS,
    POLICY,
    SOCKET_PATH,
    TCP_ADDRESS,
    Bytes,
    Choice,
    Duration,
    Kind,
    Names,
    Number,
    Path,
    Switch,
    Whole,
)

SECTIONS = (
    "model", "ipc", "limits", "scheduler", "qos.interactive", "qos.background", "metrics",
    "logging",
)  # fmt: skip

MiB = 1024 * 1024
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Option:
    """An option of the configuration.

    ``default`` is written as a user would write it.  Documentation has ``shown`` instead where the
    default is a measured or a chosen value.
    """

    name: str  # field of Config (kv_type sets two)
    section: str  # empty: no file key
    kind: Kind
    default: Any
    help: str
    shown: str
    flag: str
    env: str
    key: str

    @property
    def where(self) -> str:
        return f"[{self.section}] {self.key}"


def _option(
    section: str, name: str, kind: Kind, default: Any, help: str, shown: str = "", **spelled: str
) -> Option:
    """An option whose flag, variable and key are as its name, unless ``spelled`` has others."""
    usual = {"flag": "--" + name.replace("_", "-"), "env": "UMA_" + name.upper(), "key": name}
    return Option(name, section, kind, default, help, shown, **(usual | spelled))


_AUTO = (("auto", 0),)

# a table: one option a paragraph
# fmt: off
OPTIONS: tuple[Option, ...] = (
    # the model and where it runs
    _option("model", "model", Path("REF", "a path or a name"), "",
            "GGUF file to serve, or a name from `umaserve models`, such as hf:OWNER/REPO:QUANT or "
            "ollama:NAME; demo is the bundled model; may be given again: the first is the default",
            "what was chosen before, else the bundled model", key="path"),
    _option("model", "models_memory", Bytes(MiB, 1 << 50, (("auto", 0),), "SIZE|auto"), 0,
            "memory for all models: weights, KV caches, recurrent states", "what is free"),
    _option("model", "idle_unload_s", Duration(auto=True), "auto",
            "time without a request after which a model leaves memory; its next request loads it",
            "15m with several models, off with one", flag="--idle-unload", env="UMA_IDLE_UNLOAD",
            key="idle_unload"),
    _option("model", "load_on_demand", Switch(), True,
            "load a model when a request names it: a configured model, or without an API key any "
            "that `umaserve models` lists"),
    _option("model", "n_ctx", Whole(16, 1 << 24, _AUTO, "N|auto"), 0,
            "KV cells shared by all sessions; may exceed the model's trained length, which bounds "
            "each session; auto: as memory allows, at most that length times --parallel", "auto"),
    _option("model", "n_seq", Whole(1, 256), 8, "sequences decoding at once", flag="--parallel",
            key="parallel"),
    _option("model", "n_batch", Whole(1, 1 << 20, _AUTO), 0,
            "most tokens of one batch; at least --parallel", "by backend"),
    _option("model", "n_ubatch", Whole(1, 1 << 20, _AUTO), 0, "most tokens computed at once",
            "by backend"),
    _option("model", "threads", Whole(1, 1024, _AUTO), 0, "CPU threads", "measured"),
    _option("model", "backend", Choice(("auto", "metal", "vulkan", "cuda", "hip", "cpu")), "auto",
            "the backend; auto takes the best that was built"),
    _option("model", "gpu_layers", Whole(0, 10000, (("all", -1),)), -1, "layers kept on the GPU",
            "all"),
    _option("model", "use_mmap", Switch(), True, "map the weights instead of reading them",
            flag="--mmap", key="mmap"),
    _option("model", "use_mlock", Switch(), False, "keep the weights from being paged out",
            flag="--mlock", key="mlock"),
    _option("model", "experts_used", Whole(1, 1024, (("model", -1),)), -1,
            "experts that a token uses in a mixture of experts; fewer are faster and give other, "
            "mostly worse answers", "the model's"),
    _option("model", "pretouch", Switch(), False,
            "touch weights, tables and buffers at start, against page faults in requests"),
    _option("model", "kv_type", KV_TYPE, "f16",
            "precision of the KV cache: q8 = q8_0, q6 = 6 bits a value (q5_1), q5 = q5_0, q4 = "
            "q4_0; K:V sets keys and values apart"),
    _option("model", "kv_pack", Choice(("token-major", "head-major")), "token-major",
            "layout of V in the cache; head-major is V transposed: no flash attention, f16 V only"),
    # where clients come in
    _option("ipc", "socket", SOCKET_PATH, "/tmp/uma.sock",
            "Unix socket to listen on, mode 0600; clients without a path look for "
            "$XDG_RUNTIME_DIR/uma.sock first", env="UMA_SOCK"),
    _option("ipc", "ipc", Choice(("uds",)), "uds", "kind of the local transport"),
    _option("ipc", "http", HTTP_ADDRESS, "off",
            "serve HTTP here, for clients of OpenAI, Anthropic, Ollama and llama-server; unset, a "
            "daemon in a terminal has 127.0.0.1:8080"),
    _option("ipc", "api_key_file", Path("FILE"), "",
            "file with the API keys of HTTP, each in a line `NAME KEY` or `NAME KEY admin`; needed "
            "where other machines can ask", "none"),
    _option("ipc", "tls_cert", Path("FILE"), "", "certificate of HTTP, with its chain; PEM",
            "none"),
    _option("ipc", "tls_key", Path("FILE"), "",
            "the certificate's key, readable by nobody else; PEM without a passphrase", "none"),
    _option("ipc", "insecure_http", Switch(), False,
            "allow plain HTTP where other machines can ask, as behind a proxy with TLS"),
    _option("ipc", "allow_image_urls", Switch(), False,
            "fetch pictures that HTTP requests name by address, from public servers"),
    _option("ipc", "allow_host", Names("NAME", "names of hosts, with commas between"), "",
            "names of this machine in HTTP requests, beside numbers and localhost", "none"),
    _option("ipc", "allow_origin",
            Names("ORIGIN", "origins such as http://localhost:3000, with commas between"), "",
            "web pages that may ask by HTTP", "none"),
    _option("ipc", "model_dir", Names("DIR", "folders, with commas between", paths=True), "",
            "folders whose models HTTP may load, and `umaserve models` lists", "none"),
    _option("ipc", "agent_check", TCP_ADDRESS, "off",
            "answer HAProxy's agent check here: the share of new work that a load balancer should "
            "send"),
    _option("ipc", "max_connections", Whole(1, 1 << 20), 1024,
            "connections open at once; by HTTP as many again"),
    # limits
    _option("limits", "max_sessions", Whole(1, 4096), 32, "requests that the engine holds at once"),
    _option("limits", "max_queue", Whole(0, 1000000), 256, "requests that wait behind them"),
    _option("limits", "max_prompt_bytes", Bytes(1, 1024 * MiB, _AUTO), 0, "longest prompt",
            "what the context can hold: 8 bytes a token, 64KiB or more"),
    _option("limits", "max_frame_bytes", Bytes(64, 1024 * MiB, _AUTO), 0,
            "longest frame a client may send", "the longest prompt and 64KiB more"),
    _option("limits", "max_tokens", Whole(1, 1 << 24, _AUTO), 0,
            "most tokens one request may ask for", "the context"),
    _option("limits", "cache_ram", Bytes(MiB, 1 << 50, (("auto", -1), ("off", 0)), "SIZE|auto|off"),
            -1,
            "memory for the prefix cache; auto: a quarter of the machine's at most, and a "
            "sixteenth stays free", "auto"),
    _option("limits", "cache_dir", Path("DIR|off"), "off",
            "folder that keeps the prefix cache beyond the daemon's life; it holds prompts",
            env="UMA_CACHE_KV_DIR"),
    _option("limits", "cache_disk", Bytes(MiB, 1 << 50, (), "SIZE"), 8192 * MiB,
            "bytes that this folder may take", "8GiB"),
    _option("limits", "idle_timeout_s", Number(0, 365 * _DAY_S, "S"), 300.0,
            "seconds a connection may be silent with nothing in flight; 0 = for ever",
            flag="--idle-timeout", env="UMA_IDLE_TIMEOUT_SEC"),
    _option("limits", "max_unsent_bytes", Bytes(1, 1024 * MiB), MiB,
            "answer bytes kept for a client that does not read; then it is cut off"),
    _option("limits", "drain_s", Number(0, _DAY_S, "S"), 30.0,
            "seconds running requests get to finish at shutdown", env="UMA_DRAIN_SEC"),
    # the scheduler
    _option("scheduler", "bmt_budget", BANDWIDTH, "auto", "bytes the ticks may move per second"),
    _option("scheduler", "tick_budget_ms", Number(0.1, 60000, "MS"), 50.0,
            "ceiling of a tick's wall time unless an interactive stream sets a lower one"),
    _option("scheduler", "max_merge", Whole(0, 256), 0,
            "decoding sessions merged per tick; 0 = no cap"),
    _option("scheduler", "policy", POLICY, "guarded",
            "planner of the ticks: guarded, greedy, or MODULE:FUNCTION of your own"),
    _option("scheduler", "without", PARTS, "",
            "parts of the policy to switch off, for comparison; docs/POLICY.md names them", "none"),
    _option("scheduler", "prefill_threads", Whole(0, 1024, (("auto", -1),)), -1,
            "cores that compute prompts beside decoding, on the processor; 0 = no prompts beside "
            "the ticks, on an accelerator either", "auto"),
    _option("scheduler", "speculate", Choice(("auto", "ngram", "draft", "mtp", "off")), "auto",
            "drafts of tokens, from earlier text, by --draft-model or by the model's own heads "
            "(MTP); auto: as many as gain time now; ngram: wherever the text repeats; draft: "
            "always, by the draft model; mtp: always, by the heads"),
    _option("scheduler", "draft_model", Path("REF", "a path or a name"), "",
            "a smaller model of the same vocabulary that drafts tokens; a REF as of --model",
            "none"),
    _option("model", "mmproj", Path("FILE|auto|off", "a path, auto or off"), "auto",
            "projector of pictures, a GGUF file; auto: mmproj*.gguf beside the model; pictures "
            "take uma-eyes (`umaserve build --with-eyes`)"),
    _option("model", "lora", ADAPTERS, "",
            "LoRA adapters of the model, GGUF files; requests choose by `lora`, else have all, "
            "each with its SCALE (1)", "none"),
    _option("scheduler", "hang_timeout_s", Number(0, _DAY_S, "S"), 0.0,
            "seconds of a tick after which the engine counts as hung, or 20 times its longest tick "
            "if that is more; 0 = 30, and 120 before the first tick", "learned",
            flag="--hang-timeout", env="UMA_HANG_TIMEOUT_SEC"),
    _option("qos.interactive", "latency_cap", Number(1, 100), 1.2,
            "ceiling of the interactive p95 beside background, times its baseline"),
    _option("qos.interactive", "reading_ms", Number(1, 1000, "MS"), 25.0,
            "mean milliseconds between tokens that no reader notices; awaited prompts may slow "
            "streams to it"),
    # what is shown and kept
    _option("metrics", "scorecard", Path("FILE.csv"), "",
            "write the scorecard's columns to this CSV file", "none"),
    _option("metrics", "scorecard_interval_s", Number(0.1, _DAY_S, "S"), 5.0,
            "seconds between two rows of it", flag="--scorecard-interval",
            env="UMA_SCORECARD_INTERVAL_SEC"),
    _option("metrics", "trace", Path("FILE.jsonl"), "", "write one JSON line per tick to this file",
            "none"),
    _option("metrics", "metrics_max_bytes", Bytes(0, 1 << 50), 256 * MiB,
            "size at which scorecard or trace is moved to FILE.1 and begun again; 0 = never",
            "256MiB"),
    _option("metrics", "metrics_keep", Whole(0, 1000), 3,
            "moved files kept of each: FILE.1, FILE.2, ..."),
    _option("metrics", "dashboard", Choice(("auto", "on", "off")), "auto",
            "the live screen; auto shows it when standard output is a terminal"),
    _option("logging", "log_level",
            Choice(("debug", "info", "warn", "error"), (("warning", "warn"),)), "info",
            "least important kind of line that is logged"),
    _option("logging", "log_json", Switch(), False, "log one JSON object per line"),
    _option("logging", "core_dumps", Switch(), False,
            "allow core files, which hold prompts, and debuggers, as the system's settings do"),
    _option("", "config", Path("FILE"), "",
            "file with these settings: TOML, or YAML where its name ends in .yaml or .yml", "none",
            key=""),
)
# fmt: on

BY_NAME = {option.name: option for option in OPTIONS}
BY_ENV = {option.env: option for option in OPTIONS}

# read elsewhere: by the build, by tests, and UMA_DEBUG=1 as another name for --log-level debug
OTHER_ENV = (
    "UMA_CACHE_DIR", "UMA_STATE_DIR", "UMA_LLAMA_BUILD", "UMA_DEBUG", "UMA_CHECK_CELLS",
)  # fmt: skip
