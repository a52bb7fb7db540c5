"""``docs/CONFIG.md``, written from the option table."""

from __future__ import annotations

from umaserve.config.apps import DEFAULTS, KINDS, MEANINGS
from umaserve.config.kinds import Bytes, Switch
from umaserve.config.options import OPTIONS, SECTIONS, Option

_HEAD = """\
# Configuration

Every setting of the daemon is a flag of `umaserve serve`, an environment variable and a key of the
config file. A flag beats the environment, the environment beats the file, the file beats the
default. A flag, a key or a value that is not known is refused at start. The message has the nearest
valid name, and says where the unknown flag, key or value came from. The daemon only warns about an
unknown `UMA_…` environment variable.

```sh
umaserve serve --print-config
```

prints every setting with where it came from, as a TOML file that `--config` reads back.

This page is written by `python -m umaserve.config --markdown` from the table that the daemon itself
uses.

## The config file

`--config FILE` (or `UMA_CONFIG`) names a TOML file, or a YAML file (`.yaml`, `.yml`) with the same
sections and keys. (YAML may also use the keys of the project's first documents:
[DECISIONS.md](DECISIONS.md#the-first-documents-examples)
lists them.) For example:

```toml
[model]
path = "~/models/qwen2.5-0.5b-instruct-q8_0.gguf"
n_ctx = 8192
kv_type = "q8:f16"

[limits]
max_queue = 64
idle_timeout_s = 60

[qos.interactive]
latency_cap = 1.3
```

The sections are `[model]`, `[ipc]`, `[limits]`, `[scheduler]`, `[qos.interactive]`,
`[qos.background]` (which has no key of its own yet), `[metrics]`, `[logging]` and
[`[apps."NAME"]`](#programs).

[SCHEDULER.md](SCHEDULER.md) says what the settings of `[scheduler]` and `latency_cap` do.

## Programs

A file alone can say what programs get. `NAME` is the name of the process that connects to the
socket. Over HTTP it is the name of the API key, without keys
[what the request names](HTTP.md#for-all-families) as its app. All processes of a name that stands
here are one program. As TOML:

```text
[apps."zed"]
weight = 2
lane = "interactive"
```

| key | default | meaning | takes |
| --- | --- | --- | --- |
@APPS@

[SCHEDULER.md](SCHEDULER.md#shares-of-programs) says what shares are.

## The settings
"""

_APPS = "\n".join(
    f"| `{key}` | `{DEFAULTS[key]}` | {MEANINGS[key]} | {kind.words} |"
    for key, kind in KINDS.items()
)

_TAIL = """
Sizes take a unit: `65536`, `64KiB`, `1MiB`, `1MB`. Switches are `--mmap` and `--no-mmap` as flags,
`1`/`0`, `true`/`false`, `yes`/`no` or `on`/`off` elsewhere. In paths `~` is your home folder. A
Unix socket's path has at most 107 bytes on Linux and 103 on macOS.

## Other environment variables

| variable | what it does |
| --- | --- |
| `UMA_DEBUG=1` | the same as `UMA_LOG_LEVEL=debug`, which beats it |
| `UMA_CACHE_DIR` | where builds and compiled code are kept; see [BUILD.md](BUILD.md) |
| `UMA_STATE_DIR` | where the [chosen model](MODELS.md) and copies of [settings](HTTP.md) are kept |
| `UMA_CHECK_CELLS=1` | an idle engine counts its KV cells, and ends where it is wrong; for tests |
| `UMA_LLAMA_BUILD` | the key, or the folder, of the one build to use, whatever else is there |
| `UMA_SOCK` | clients read it too: the socket that they connect to |
"""


def _default(option: Option) -> str:
    if option.shown:
        return option.shown
    if isinstance(option.kind, Switch):
        return "on" if option.default else "off"
    value = option.default
    if isinstance(option.kind, Bytes) and value % (1024 * 1024) == 0:
        return f"`{value // (1024 * 1024)}MiB`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _row(option: Option) -> str:
    flag = option.flag
    if isinstance(option.kind, Switch):
        flag = f"`{flag}` `--no-{flag[2:]}`"
    else:
        metavar = option.kind.metavar.replace("|", "\\|")
        flag = f"`{flag} {metavar}`"
    key = f"`{option.key}`" if option.key else "none"
    words = option.kind.words.replace("|", "\\|")
    return f"| {flag} | `{option.env}` | {key} | {_default(option)} | {option.help} | {words} |"


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD.replace("@APPS@", _APPS)]
    for section in (*SECTIONS, ""):
        options = [option for option in OPTIONS if option.section == section]
        if not options:
            continue
        title = f"`[{section}]`" if section else "The file itself"
        parts.append(f"\n### {title}\n\n")
        parts.append("| flag | environment | key | default | meaning | takes |\n")
        parts.append("| --- | --- | --- | --- | --- | --- |\n")
        parts += [_row(option) + "\n" for option in options]
    return "".join(parts) + _TAIL
