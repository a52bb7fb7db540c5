"""``Config``: every setting of the daemon, resolved, with where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from umaserve.app_settings import AppSettings
from umaserve.config.kinds import KV_TYPES
from umaserve.config.kinds import ConfigError as ConfigError
from umaserve.config.named import APPS, MODELS, adapters_toml, toml
from umaserve.config.options import OPTIONS, SECTIONS, Option
from umaserve.model_settings import AdapterSettings, ModelSettings


@dataclass(frozen=True)
class Config:
    """Settings of one daemon; ``docs/CONFIG.md`` explains each.

    Sizes are bytes, ``*_s`` seconds, ``*_ms`` milliseconds.  With 0 the engine chooses ``n_ctx``,
    ``n_batch``, ``n_ubatch`` and ``threads``.  With 0 the context sets ``max_prompt_bytes``,
    ``max_frame_bytes`` and ``max_tokens``.  With -1 ``gpu_layers`` is all, and ``experts_used`` the
    model's own number.  Empty paths mean none (``model``: the bundled one).
    ``origin`` maps an option's name to "default", "flag --n-ctx", "environment UMA_N_CTX" or
    "FILE: [model] n_ctx".  ``apps`` and ``models``: by their names; ``models`` may have the default
    model too, under the name ``default_model``.  ``models_memory`` is 0 for all of the machine's,
    ``idle_unload_s`` -1 where the number of models decides.
    """

    model: str = ""
    default_model: str = ""
    models_memory: int = 0
    idle_unload_s: float = -1.0
    load_on_demand: bool = True
    n_ctx: int = 0
    n_seq: int = 8
    n_batch: int = 0
    n_ubatch: int = 0
    threads: int = 0
    backend: str = "auto"
    gpu_layers: int = -1
    use_mmap: bool = True
    use_mlock: bool = False
    experts_used: int = -1
    pretouch: bool = False
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    kv_pack: str = "token-major"
    socket: str = "/tmp/uma.sock"
    ipc: str = "uds"
    http: str = "off"
    agent_check: str = "off"
    api_key_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    insecure_http: bool = False
    allow_image_urls: bool = False
    allow_host: str = ""
    allow_origin: str = ""
    model_dir: str = ""
    max_connections: int = 1024
    max_sessions: int = 32
    max_queue: int = 256
    max_prompt_bytes: int = 0
    max_frame_bytes: int = 0
    max_tokens: int = 0
    cache_ram: int = -1
    cache_dir: str = "off"
    cache_disk: int = 8 << 30
    idle_timeout_s: float = 300.0
    max_unsent_bytes: int = 1024 * 1024
    drain_s: float = 30.0
    bmt_budget: str = "auto"
    tick_budget_ms: float = 50.0
    max_merge: int = 0
    policy: str = "guarded"
    without: str = ""
    prefill_threads: int = -1
    speculate: str = "auto"
    draft_model: str = ""
    mmproj: str = "auto"
    lora: tuple[AdapterSettings, ...] = ()
    hang_timeout_s: float = 0.0
    latency_cap: float = 1.2
    reading_ms: float = 25.0
    scorecard: str = ""
    scorecard_interval_s: float = 5.0
    trace: str = ""
    metrics_max_bytes: int = 256 * 1024 * 1024
    metrics_keep: int = 3
    dashboard: str = "auto"
    log_level: str = "info"
    log_json: bool = False
    core_dumps: bool = False
    config: str = ""
    apps: Mapping[str, AppSettings] = field(default_factory=dict, hash=False)
    models: Mapping[str, ModelSettings] = field(default_factory=dict, hash=False)
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def head_major(self) -> bool:
        return self.kv_pack == "head-major"

    def explain(self) -> str:
        """All settings as a TOML file, with where each value came from as a comment."""
        blocks = []
        for section in SECTIONS:
            options = [option for option in OPTIONS if option.section == section]
            if not options:
                continue
            rows = [(f"{option.key} = {self._toml(option)}", option) for option in options]
            width = max(len(text) for text, _ in rows)
            blocks.append(
                f"[{section}]\n"
                + "\n".join(
                    f"{text:{width}}  # {self.origin.get(option.name, 'default')}"
                    for text, option in rows
                )
            )
        blocks += [APPS.explain(name, app) for name, app in self.apps.items()]
        blocks += [MODELS.explain(name, model) for name, model in self.models.items()]
        return "\n\n".join(blocks)

    def _toml(self, option: Option) -> str:
        if option.name == "kv_type":
            names = {ggml: name for name, ggml in KV_TYPES.items()}
            k, v = names[self.kv_type_k], names[self.kv_type_v]
            return f'"{k}"' if k == v else f'"{k}:{v}"'
        value = getattr(self, option.name)
        if option.name == "model" and self.default_model:
            value = self.default_model
        for name, number in getattr(option.kind, "names", ()):  # as a person would type it
            if value == number and isinstance(number, int):
                return f'"{name}"'
        return adapters_toml(value) if option.name == "lora" else toml(value)
