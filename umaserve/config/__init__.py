"""Configuration of the daemon: one table of options; flags, environment, file and docs from it."""

from __future__ import annotations

from umaserve.config.flags import add_flags, flag_values
from umaserve.config.kinds import SOCKET_PATH_BYTES, bytes_per_second, host_and_port
from umaserve.config.load import load_config
from umaserve.config.options import OPTIONS, SECTIONS, Option
from umaserve.config.settings import Config, ConfigError

__all__ = [
    "OPTIONS",
    "SECTIONS",
    "SOCKET_PATH_BYTES",
    "Config",
    "ConfigError",
    "Option",
    "add_flags",
    "bytes_per_second",
    "flag_values",
    "host_and_port",
    "load_config",
]
