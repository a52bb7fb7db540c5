"""``[apps."NAME"]`` and ``[models."NAME"]``: sections with names, which a config file alone can
set."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from umaserve.app_settings import AppSettings
from umaserve.config.kinds import (
    ADAPTERS,
    KV_TYPE,
    KV_TYPES,
    Choice,
    ConfigError,
    Duration,
    Kind,
    Names,
    Number,
    Path,
    Switch,
    Whole,
)
from umaserve.model_settings import ROLES, AdapterSettings, ModelSettings

MOST_NAME = 128  # characters, as of ``app`` in a request
LANES = ("auto", "interactive", "background")


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean X?" where some known name is close to ``word``, else an empty string."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


@dataclass(frozen=True)
class Key:
    """A key of such a section; ``field`` is what it sets, ``default`` as docs show it."""

    name: str
    field: str
    kind: Kind
    default: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """The sections of one kind; ``make`` takes the fields by name."""

    section: str
    named: str  # what their names are of
    example: str
    keys: tuple[Key, ...]
    make: Callable[..., Any]
    needed: str = ""  # the key that each must have

    def take(self, tree: dict[str, Any], path: str) -> Mapping[str, Any]:
        """Take the sections out of a file's content.  Raises ``ConfigError``."""
        content = tree.pop(self.section, None) or {}
        if not isinstance(content, dict):
            text = f'{path}: {self.section} must hold sections such as [{self.section}."'
            raise ConfigError(f'{text}{self.example}"]')
        found = {}
        for name, settings in content.items():
            where = f'{path}: [{self.section}."{name}"]'
            if not 1 <= len(str(name)) <= MOST_NAME or not str(name).isprintable():
                text = f"names no {self.named}: 1 to {MOST_NAME} printable characters do"
                raise ConfigError(f"{where} {text}")
            if not isinstance(settings, dict):
                some = " and ".join(key.name for key in self.keys[:2])
                raise ConfigError(f"{where} must be a section with keys such as {some}")
            found[str(name)] = self._read(settings, where)
        return found

    def _read(self, settings: dict[str, Any], where: str) -> Any:
        keys = {key.name: key for key in self.keys}
        values: dict[str, Any] = {}
        for name, value in settings.items():
            key = keys.get(str(name))
            if key is None:
                raise ConfigError(f"{where}: unknown key {name!r}{nearest(str(name), keys)}")
            try:
                values[key.field] = key.kind.parse(value)
            except ValueError as error:
                hint = ""
                if isinstance(key.kind, Choice):
                    hint = nearest(str(value), key.kind.choices)
                raise ConfigError(
                    f"{where} {name}: {value!r} is not possible: it takes {error}{hint}"
                ) from None
        if self.needed and not values.get(keys[self.needed].field):
            raise ConfigError(f"{where}: the key {self.needed} is missing")
        return self.make(**values)

    def explain(self, name: str, settings: Any) -> str:
        """A section in a TOML file."""
        rows = [f'[{self.section}."{_quoted(name)}"]']
        for key in self.keys:
            value = getattr(settings, key.field)
            if value not in (None, "") and (value != () or key.field == "lora"):
                rows.append(f"{key.name} = {'{}' if value == () else toml(value)}")
        return "\n".join(rows)


def _model(**values: Any) -> ModelSettings:
    aliases = values.pop("aliases", "")
    return ModelSettings(**values, aliases=tuple(aliases.split(",")) if aliases else ())


APPS = Table(
    "apps", "program", "zed",
    (
        Key("weight", "weight", Number(0.01, 100), f"{AppSettings().weight:g}", "its share"),
        Key("lane", "lane", Choice(LANES), AppSettings().lane,
            "lane of its requests that name none"),
    ),
    AppSettings,
)  # fmt: skip

MODELS = Table(
    "models", "model", "coder",
    (
        Key("path", "path", Path("REF", "a path or a name"), "", "its file; a REF as of `--model`"),
        Key("aliases", "aliases", Names("NAME", "names"), "", "other names that requests may use"),
        Key("role", "role", Choice(ROLES), "",
            "`embed` answers embeddings that name no model, `rerank` rankings; both only encode"),
        Key("n_ctx", "n_ctx", Whole(16, 1 << 24, (("auto", 0),)), "`--n-ctx`", "its KV cells"),
        Key("parallel", "n_seq", Whole(1, 256), "`--parallel`", "its sequences"),
        Key("kv_type", "kv_type", KV_TYPE, "`--kv-type`", "precision of its KV cache"),
        Key("draft_model", "draft_model", Path("REF", "a path or a name"), "`--draft-model`",
            "the smaller model that drafts for it"),
        Key("mmproj", "mmproj", Path("FILE|auto|off", "a path, auto or off"), "`--mmproj`",
            "the projector of its pictures"),
        Key("lora", "lora", ADAPTERS, "", "its LoRA adapters; the default model's are `--lora`"),
        Key("ttl", "ttl_s", Duration(), "`--idle-unload`",
            "time without a request after which it leaves memory; off: never"),
        Key("pin", "pin", Switch(), "off", "loaded at start, and never leaves"),
    ),
    _model,
    needed="path",
)  # fmt: skip

TABLES = (APPS, MODELS)


def adapters_toml(adapters: Iterable[AdapterSettings]) -> str:
    """Adapters as a table in one line."""
    return "{" + ", ".join(
        f'"{_quoted(each.name)}" = {{path = "{_quoted(each.path)}", scale = {each.scale!r}}}'
        for each in adapters
    ) + "}"  # fmt: skip


def toml(value: Any) -> str:
    """A value as TOML writes it; two KV types as ``K:V``."""
    if isinstance(value, tuple) and value and isinstance(value[0], AdapterSettings):
        return adapters_toml(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and len(value) == 2 and set(value) <= set(KV_TYPES.values()):
        return f'"{value[0]}:{value[1]}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return f'"{_quoted(value)}"' if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
