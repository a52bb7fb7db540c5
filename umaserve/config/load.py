"""From flags, environment and file to a ``Config``: flag beats environment beats file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

from umaserve.config.named import TABLES, nearest
from umaserve.config.options import BY_ENV, BY_NAME, OPTIONS, OTHER_ENV, SECTIONS, Option
from umaserve.config.settings import Config, ConfigError
from umaserve.config.spellings import translate
from umaserve.model_settings import ModelSettings
from umaserve.system.regular_file import open_regular

PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # of a shell's ``<(command)``
_DEBUG_OFF = ("", "0", "false", "no", "off")


def load_config(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """The settings of a daemon.

    ``flags`` maps option names (``n_ctx``; ``config`` among them) to what the command line gave,
    ``environ`` defaults to the process's.  Raises ``ConfigError`` for an unknown name or an
    unusable value; unknown ``UMA_*`` variables only end up in ``Config.warnings``.
    """
    flags = dict(flags or {})
    environ = os.environ if environ is None else environ
    superseded: list[str] = []
    named: dict[str, Mapping[str, Any]] = {}
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}

    def take(option: Option, raw: Any, source: str) -> None:
        try:
            values[option.name] = option.kind.parse(raw)
        except ValueError as error:
            raise ConfigError(f"{source}: {raw!r} is not possible: it takes {error}") from None
        origin[option.name] = source

    for option in OPTIONS:
        take(option, option.default, "default")
    config = BY_NAME["config"]
    if environ.get(config.env):
        take(config, environ[config.env], f"environment {config.env}")
    if "config" in flags:
        take(config, flags["config"], f"flag {config.flag}")
    if values["config"]:
        path = values["config"]
        tree = _read(path)
        if isinstance(tree, dict):
            named = {table.section: table.take(tree, path) for table in TABLES}
        settings, superseded = _settings(tree, path)
        for option, raw, where in settings:
            if origin[option.name].startswith(f"{path}: "):
                raise ConfigError(f"{origin[option.name]} and {where} are the same; give one")
            take(option, raw, f"{path}: {where}")
    if environ.get("UMA_DEBUG", "").strip().lower() not in _DEBUG_OFF:
        take(BY_NAME["log_level"], "debug", "environment UMA_DEBUG")
    for name, option in BY_ENV.items():
        if environ.get(name) and option is not config:
            take(option, environ[name], f"environment {name}")
    models = _models(flags, named.get("models", {}))
    for name, raw in flags.items():
        if name not in BY_NAME:
            raise ConfigError(f"unknown option {name!r}{nearest(name, BY_NAME)}")
        take(BY_NAME[name], raw, f"flag {BY_NAME[name].flag}")
    _check(values, origin)
    values["kv_type_k"], values["kv_type_v"] = values.pop("kv_type")
    values["warnings"] = (*superseded, *_strangers(environ))
    values["default_model"] = _default_model(values, origin, models)
    return Config(**values, apps=named.get("apps", {}), models=models, origin=origin)


def _default_model(
    values: dict[str, Any], origin: dict[str, str], models: dict[str, ModelSettings]
) -> str:
    """The name of the default model in the file; empty where it is not of the file.

    The path that stands there takes the name's place in ``values``.
    """
    if models and not values["model"]:
        values["model"], origin["model"] = next(iter(models)), "the first of [models]"
    name = str(values["model"])
    if name not in models:
        return ""
    values["model"] = models[name].path
    return name


def _models(
    flags: dict[str, Any], of_file: Mapping[str, ModelSettings]
) -> dict[str, ModelSettings]:
    """The models by name; each that --model names behind the first one is called as its file.

    The first one stays in ``flags``.
    """
    models = dict(of_file)
    if not isinstance(flags.get("model"), list):
        return models
    flags["model"], *references = flags["model"]
    for reference in references:
        if reference in models:
            continue
        name = os.path.basename(reference).removesuffix(".gguf")
        if not name or name in models:
            text = f"flag --model: {reference!r} names no model, or two have the name {name!r}"
            raise ConfigError(f'{text}; give them names as [models."NAME"] in a file')
        models[name] = ModelSettings(os.path.expanduser(reference))
    return models


def _strangers(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = [*BY_ENV, *OTHER_ENV]
    return tuple(
        f"environment variable {name} is not one of ours and is ignored{nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith("UMA_") and name not in known
    )


def _check(values: dict[str, Any], origin: dict[str, str]) -> None:
    """Raise ``ConfigError`` for values that do not fit together."""
    if values["kv_pack"] == "head-major" and values["kv_type"][1] != "f16":
        raise ConfigError(
            f"kv_pack head-major ({origin['kv_pack']}) needs an f16 V, and kv_type "
            f"({origin['kv_type']}) makes it {values['kv_type'][1]}; set V apart, as in "
            "--kv-type q8:f16, or leave the layout token-major"
        )
    if values["speculate"] == "draft" and not values["draft_model"]:
        raise ConfigError(
            f"speculate draft ({origin['speculate']}) needs a model that drafts; name it with "
            "--draft-model REF"
        )
    batch, ubatch = values["n_batch"], values["n_ubatch"]
    if batch and ubatch > batch:
        raise ConfigError(
            f"n_ubatch {ubatch} ({origin['n_ubatch']}) is larger than n_batch {batch} "
            f"({origin['n_batch']}); lower the one or raise the other"
        )


def _read(path: str) -> Any:
    """The file's content as nested dicts."""
    try:
        # another pipe, in a folder, may have no writer
        with open(path, "rb") if path.startswith(PIPES) else open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    if _is_yaml(path):
        import yaml

        try:
            return yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from None
    import tomli

    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _is_yaml(path: str) -> bool:
    return path.lower().endswith((".yaml", ".yml"))


def _settings(tree: Any, path: str) -> tuple[list[tuple[Option, Any, str]], list[str]]:
    """``(option, value, key)`` of every key in the file, and warnings."""
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must hold sections such as [model], not a {_kind(tree)}")
    taken, warnings = translate(tree, path) if _is_yaml(path) else ([], [])
    settings = [(BY_NAME[name], value, key) for name, value, key in taken]
    settings += [(option, value, option.where) for option, value in _flatten(tree, path)]
    return settings, warnings


def _flatten(tree: dict[str, Any], path: str) -> list[tuple[Option, Any]]:
    """``(option, value)`` of every key in the file; refuses sections and keys that are unknown."""
    sections: dict[str, Any] = {}
    for name, content in tree.items():
        if name == "qos":
            if not isinstance(content, dict):
                raise ConfigError(f"{path}: qos must be a section, not a {_kind(content)}")
            sections.update({f"qos.{lane}": value for lane, value in content.items()})
        else:
            sections[str(name)] = content
    out = []
    for section, content in sections.items():
        if section not in SECTIONS:
            hint = _home(section) or nearest(
                section, (*SECTIONS, *(table.section for table in TABLES))
            )
            raise ConfigError(f"{path}: unknown section or key {section!r}{hint}")
        if content is None:  # an empty section of a YAML file
            continue
        if not isinstance(content, dict):
            example = next(o.key for o in OPTIONS if o.section.startswith(section.split(".")[0]))
            raise ConfigError(
                f"{path}: {section} must be a section with keys such as {example}, "
                f"not a {_kind(content)}"
            )
        keys = {option.key: option for option in OPTIONS if option.section == section}
        for key, value in content.items():
            if key not in keys:
                hint = _home(str(key)) or nearest(str(key), keys) or _anywhere(str(key))
                raise ConfigError(f"{path}: unknown key {key!r} in [{section}]{hint}")
            out.append((keys[key], value))
    return out


def _kind(value: Any) -> str:
    names = {str: "string", int: "number", float: "number", bool: "boolean", list: "list"}
    return names.get(type(value), type(value).__name__)


def _home(word: str) -> str:
    """Where a key belongs that stands in the wrong place, or is known by its flag's name."""
    plain = word.replace("-", "_")
    for option in OPTIONS:
        if option.key and plain in (option.key, option.name, option.flag[2:].replace("-", "_")):
            return f"; did you mean {option.where}?"
    return ""


def _anywhere(word: str) -> str:
    keys = [option.key for option in OPTIONS if option.key]
    found = difflib.get_close_matches(word, keys, n=1, cutoff=0.6)
    return _home(found[0]) if found else ""
