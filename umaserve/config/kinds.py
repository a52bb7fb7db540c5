"""Kinds of option values: each turns text (flag, environment) or a file's value into the value.

A kind's ``parse`` raises ``ValueError`` with words that complete '... must be ...'; who calls it
knows where the value came from.

Long: a class or a function for each kind of setting.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from umaserve.model_settings import AdapterSettings

_UNITS = {
    "": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "kib": 1024, "mib": 1024**2,
    "gib": 1024**3, "kb": 1000, "mb": 1000**2, "gb": 1000**3,
}  # fmt: skip
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)")
_SCALE = re.compile(r":([+-]?\d+(?:\.\d+)?)$")
MOST_SCALE = 100.0  # of an adapter
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

# names of --kv-type and the ggml types they stand for; q6 is 6.0 bits a value, which is q5_1
KV_TYPES = {"f16": "f16", "q8": "q8_0", "q6": "q5_1", "q5": "q5_0", "q4": "q4_0"}
_GGML_TYPES = {name: name for name in KV_TYPES.values()}

# bytes of sun_path, the closing NUL included
SOCKET_PATH_BYTES = 104 if sys.platform == "darwin" else 108


class ConfigError(ValueError):
    """A setting that cannot be used; the text says which, where it came from and what to do."""


@dataclass(frozen=True)
class Whole:
    """A whole number; ``names`` are words that stand for one (``{"all": -1}``)."""

    low: int
    high: int
    names: tuple[tuple[str, int], ...] = ()
    metavar: str = "N"

    @property
    def words(self) -> str:
        return f"{self._named_words()}a whole number from {self.low} to {self.high}"

    def _named_words(self) -> str:
        return "".join(f'"{name}" or ' for name, _ in self.names)

    def _read(self, text: str) -> int | None:
        """Return the number that ``text`` spells, or None."""
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else None

    def parse(self, value: Any) -> int:
        named = dict(self.names)
        if value is False and "off" in named:  # YAML reads a bare off as a boolean
            return named["off"]
        if isinstance(value, str):
            text = value.strip().lower()
            if text in named:
                return named[text]
            value = self._read(text)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(self.words)
        if value not in named.values() and not self.low <= value <= self.high:
            raise ValueError(self.words)
        return value


class Bytes(Whole):
    """A size in bytes, with or without a unit."""

    @property
    def words(self) -> str:
        size = f"a size from {self.low} to {self.high} bytes, such as 65536, 64KiB or 1MiB"
        return self._named_words() + size

    def _read(self, text: str) -> int | None:
        found = _SIZE.fullmatch(text)
        if not found or found[2] not in _UNITS:
            return None
        size = float(found[1]) * _UNITS[found[2]]
        return int(size) if size.is_integer() else None


@dataclass(frozen=True)
class Number:
    """A number, fractions allowed."""

    low: float
    high: float
    metavar: str = "X"

    @property
    def words(self) -> str:
        return f"a number from {self.low:.10g} to {self.high:.10g}"

    def parse(self, value: Any) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise ValueError(self.words) from None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(self.words)
        if not self.low <= value <= self.high:
            raise ValueError(self.words)
        return float(value)


@dataclass(frozen=True)
class Switch:
    """On or off."""

    metavar: str = ""
    words: str = "true or false"

    def parse(self, value: Any) -> bool:
        text = str(value).strip().lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise ValueError(self.words)


@dataclass(frozen=True)
class Choice:
    """A choice of a few words; ``aliases`` are other spellings of them."""

    choices: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    @property
    def metavar(self) -> str:
        return "|".join(self.choices)

    @property
    def words(self) -> str:
        return "one of " + ", ".join(self.choices)

    def parse(self, value: Any) -> str:
        # YAML reads a bare off or on as a boolean
        if isinstance(value, bool):
            value = "on" if value else "off"
        text = str(value).strip().lower()
        text = dict(self.aliases).get(text, text)
        if text not in self.choices:
            raise ValueError(self.words)
        return text


@dataclass(frozen=True)
class Path:
    """A path; ``~`` is expanded.  Empty means none."""

    metavar: str = "PATH"
    words: str = "a path"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(self.words)
        return os.path.expanduser(value)


@dataclass(frozen=True)
class Form:
    """A value of a form of its own, which ``read`` takes apart.

    ``read`` raises ``ValueError``, with a text where that says more than ``words``.
    """

    metavar: str
    words: str
    read: Callable[[Any], Any]

    def parse(self, value: Any) -> Any:
        try:
            return self.read(value)
        except ValueError as error:
            raise ValueError(str(error) or self.words) from None


# names of umaserve.policy.base.FEATURES, which a test compares: this package imports nobody
POLICY_PARTS = (
    "latency-guard", "error-budget", "sweet-spot", "lanes", "prompt-aside", "bandwidth", "abort",
    "ageing", "slices", "urgency", "shares",
)  # fmt: skip
POLICIES = ("guarded", "greedy")


def _policy(value: Any) -> str:
    """A policy of ours, or a function of the user's."""
    module, colon, function = str(value).partition(":")
    mine = colon and function.isidentifier() and module.replace(".", "_").isidentifier()
    if value not in POLICIES and not mine:
        raise ValueError
    return str(value)


def _parts(value: Any) -> str:
    """Parts of the policy, with commas between or as a list; the value is the first form."""
    parts = value if isinstance(value, list) else str(value).split(",")
    names = [str(part).strip() for part in parts if str(part).strip()]
    if any(name not in POLICY_PARTS for name in names):
        raise ValueError
    return ",".join(dict.fromkeys(names))


POLICY = Form("NAME", "guarded, greedy or MODULE:FUNCTION", _policy)
PARTS = Form("PART,...", "some of " + ", ".join(POLICY_PARTS), _parts)


@dataclass(frozen=True)
class Names:
    """Several values: a flag given several times, a list, or a text with commas between.

    The value is the last of these forms.  ``paths``: ``~`` is expanded.
    """

    metavar: str
    words: str
    paths: bool = False

    def parse(self, value: Any) -> str:
        given = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str) and "\0" not in each for each in given):
            raise ValueError(self.words)
        names = [part.strip() for each in given for part in each.split(",")]
        names = [os.path.expanduser(name) if self.paths else name for name in names if name]
        return ",".join(dict.fromkeys(names))


_ADAPTERS = "adapters as NAME=FILE or NAME=FILE:SCALE, or a table of NAME = FILE"


def _adapters(value: Any) -> tuple[AdapterSettings, ...]:
    """LoRA adapters by name: a table of files, or a text with commas between them."""
    if isinstance(value, str):
        pairs = [part.partition("=")[::2] for part in value.split(",") if part.strip()]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        raise ValueError
    found = [_adapter(str(name).strip(), each) for name, each in pairs]
    if len({each.name for each in found}) < len(found):
        raise ValueError(f"{_ADAPTERS}, each of another name")
    return tuple(found)


def _adapter(name: str, value: Any) -> AdapterSettings:
    path, scale = value, 1.0
    if isinstance(value, dict) and set(value) <= {"path", "scale"}:
        path, scale = value.get("path"), value.get("scale", 1.0)
    elif isinstance(value, str) and (end := _SCALE.search(value)):
        path, scale = value[: end.start()], float(end[1])
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not name or not isinstance(path, str) or not path.isprintable() or not path.strip():
        raise ValueError
    if not is_number or not abs(scale) <= MOST_SCALE:
        raise ValueError(f"{_ADAPTERS}; a SCALE is a number from -100 to 100")
    return AdapterSettings(name, os.path.expanduser(path.strip()), float(scale))


def _socket_path(value: Any) -> str:
    """A path that fits a Unix socket address of this system."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    path = os.path.expanduser(value)
    size = len(os.fsencode(path))
    if size >= SOCKET_PATH_BYTES:
        raise ValueError(
            f"a path of at most {SOCKET_PATH_BYTES - 1} bytes (a limit of Unix sockets); this "
            f"one has {size}: choose a shorter one, such as /tmp/uma.sock"
        )
    return path


ADAPTERS = Form("NAME=FILE[:SCALE],...", _ADAPTERS, _adapters)
SOCKET_PATH = Form("PATH", "a path that is short enough", _socket_path)


@dataclass(frozen=True)
class Duration:
    """A time with or without a unit, in seconds; ``off`` is 0, ``auto`` -1 where it is allowed."""

    auto: bool = False

    @property
    def names(self) -> tuple[tuple[str, int], ...]:
        return (("off", 0), ("auto", -1)) if self.auto else (("off", 0),)

    @property
    def metavar(self) -> str:
        return "TIME|off"

    @property
    def words(self) -> str:
        return "off, or a time of at most 365 days such as 90s, 15m or 2h" + ", auto" * self.auto

    def parse(self, value: Any) -> float:
        if value is False:  # YAML reads a bare off as a boolean
            return 0.0
        text = str(value).strip().lower()
        named = dict(self.names)
        if text in named:
            return float(named[text])
        found = _DURATION.fullmatch(text)
        seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
        if not 0 <= seconds <= 365 * _SECONDS["d"]:
            raise ValueError(self.words)
        return seconds


def _kv_type(value: Any) -> tuple[str, str]:
    """``q8`` for both halves of the KV cache, or ``K:V`` apart; the value is ``(K, V)``."""
    parts = str(value).strip().lower().split(":")
    names = KV_TYPES | _GGML_TYPES
    if not 1 <= len(parts) <= 2 or not all(part in names for part in parts):
        raise ValueError
    return names[parts[0]], names[parts[-1]]


def _bandwidth(value: Any) -> str:
    """``320GBps``, ``auto`` or ``off``; the value is the same text, normalised."""
    if value is False:  # YAML reads a bare off as a boolean
        return "off"
    text = str(value).strip().lower()
    if text in ("auto", "off"):
        return text
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*gb(?:ps|/s)", text)
    if not found or float(found[1]) <= 0:
        raise ValueError
    return f"{float(found[1]):g}GBps"


def host_and_port(address: str) -> tuple[str, int]:
    """Both parts of ``HOST:PORT``, an IPv6 address without its brackets.  Raises ``ValueError``."""
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host) or not re.fullmatch(r"\d{1,5}", port):
        raise ValueError
    if int(port) > 65535 or re.search(r"[\s/]", bare):
        raise ValueError
    return bare, int(port)


def _tcp_address(value: Any) -> str:
    """``off`` or ``HOST:PORT``; port 0 lets the system choose."""
    text = value.strip() if isinstance(value, str) else value
    if text is False or str(text).lower() == "off":
        return "off"
    if not isinstance(text, str):
        raise ValueError
    host_and_port(text)
    return text


def _http_address(value: Any) -> str:
    """``off``, ``HOST:PORT`` or ``unix:PATH``."""
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("unix:"):
        return "unix:" + str(SOCKET_PATH.parse(text.removeprefix("unix:")))
    return _tcp_address(value)


KV_TYPE = Form("|".join(KV_TYPES), f"one of {', '.join(KV_TYPES)}, or two of them as K:V", _kv_type)
BANDWIDTH = Form(
    "320GBps|auto|off", "auto, off, or a bandwidth above 0 such as 320GBps or 60.5GBps", _bandwidth
)
TCP_ADDRESS = Form("off|HOST:PORT", "off or HOST:PORT (such as 127.0.0.1:8081)", _tcp_address)
HTTP_ADDRESS = Form(
    "off|HOST:PORT|unix:PATH", "off, HOST:PORT (such as 127.0.0.1:8080) or unix:PATH", _http_address
)

Kind = Whole | Number | Switch | Choice | Path | Names | Duration | Form


def bytes_per_second(budget: str) -> float | None:
    """A ``bmt_budget`` in bytes per second; ``None`` for ``auto`` and ``off``."""
    return None if budget in ("auto", "off") else float(budget[: -len("GBps")]) * 1e9
