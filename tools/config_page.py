"""``docs/CONFIG.md``: ``python -m tools.config_page`` writes it from the table of options."""

from __future__ import annotations

from pathlib import Path

from umaserve.config.kinds import Bytes, Choice, Names, Number, Switch, Whole
from umaserve.config.named import APPS, MODELS, Table
from umaserve.config.options import OPTIONS, SECTIONS, Option

PAGE = Path(__file__).resolve().parents[1] / "docs/CONFIG.md"
_HEAD = """\
# Configuration

Every setting of the daemon is a flag of `umaserve serve`, an environment variable and a key of the
config file. A flag beats the environment, the environment beats the file, the file beats the
default. An unknown flag, key or value is refused at start, with its origin and the nearest valid
name. An unknown `UMA_…` variable is only warned about.

```sh
umaserve serve --print-config
```

prints every setting and its origin, as a TOML file that `--config` reads back.
`python -m tools.config_page` writes this page.

## The config file

`--config FILE` names a TOML file, or a YAML file (`.yaml`, `.yml`) with the same sections and keys.
YAML may also use the keys of [the first documents](notes/README.md#the-first-documents-examples).
For example:

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

The sections are those below, `[qos.background]` (without a key yet),
[`[apps."NAME"]`](#programs) and [`[models."NAME"]`](#models). [SCHEDULER.md](SCHEDULER.md)
explains `[scheduler]` and `latency_cap`.

## Programs

Only a file can set the [share](SCHEDULER.md#shares-of-programs) and lane of a program. `NAME` is
the name of the process that connects to the socket; over HTTP that of the API key, or without keys
[the request's app](HTTP.md#for-all-families). All processes of one `NAME` are one program.

```text
[apps."zed"]
weight = 2
lane = "interactive"
```

| key | default | meaning |
| --- | --- | --- |
@APPS@

## Models

[Several models](MODELS.md#several-models) are those that `--model` names, and those of a file. A
setting that is not given is the daemon's.

```text
[models."coder"]
path = "~/models/qwen2.5-coder-1.5b-q8_0.gguf"
aliases = ["completion"]
ttl = "30m"
```

| key | default | meaning |
| --- | --- | --- |
@MODELS@

## The settings

A range of values stands behind the meaning. Fractions are allowed where the flag has `MS`, `S` or
`X`.
"""


def _table(table: Table) -> str:
    return "\n".join(
        f"| `{key.name}` | {key.default or 'none'} | {_with_range(key.meaning, key.kind)} |"
        for key in table.keys
    )


def _with_range(meaning: str, kind: object) -> str:
    """Return the meaning of a setting, with the range or the form of its value."""
    if not isinstance(kind, Whole | Number | Names | Choice) or isinstance(kind, Bytes):
        return meaning
    words = kind.words.replace("a whole number from ", "").removeprefix("a number from ")
    words = words.removesuffix(", with commas between")
    return meaning if words in meaning else f"{meaning}; {words}"


_TAIL = """
Sizes take a unit (`65536`, `64KiB`, `1MiB`, `1MB`), and times (`90s`, `15m`, `2h`). Switches
are `--mmap` and `--no-mmap` as flags, `1`/`0`, `true`/`false`, `yes`/`no` or `on`/`off` elsewhere.
Lists have commas between. In paths `~` is your home folder. A Unix socket's path has at most 107
bytes on Linux and 103 on macOS.

## Other environment variables

| variable | effect |
| --- | --- |
| `UMA_DEBUG=1` | as `UMA_LOG_LEVEL=debug`; `UMA_LOG_LEVEL` beats it |
| `UMA_CACHE_DIR` | folder of [builds](BUILD.md) and compiled code |
| `UMA_STATE_DIR` | folder of the [chosen model](MODELS.md) and copies of [settings](HTTP.md) |
| `UMA_CHECK_CELLS=1` | for tests: an idle engine counts its KV cells, and ends on an error |
| `UMA_LLAMA_BUILD` | key or folder of the only build to use |
| `UMA_SOCK` | the socket, for clients too |
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
    names = " ".join([flag, f"`{option.env}`", *([f"`{option.key}`"] if option.key else [])])
    told = option.help if isinstance(option.kind, Choice) else _with_range(option.help, option.kind)
    return f"| {names} | {_default(option)} | {told} |"


def page() -> str:
    """The whole page."""
    parts = [_HEAD.replace("@APPS@", _table(APPS)).replace("@MODELS@", _table(MODELS))]
    for section in (*SECTIONS, ""):
        options = [option for option in OPTIONS if option.section == section]
        if not options:
            continue
        title = f"`[{section}]`" if section else "The file itself"
        parts.append(f"\n### {title}\n\n")
        parts.append("| flag, environment, key | default | meaning |\n| --- | --- | --- |\n")
        parts += [_row(option) + "\n" for option in options]
    return "".join(parts) + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
