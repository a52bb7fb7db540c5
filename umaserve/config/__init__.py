"""Configuration of the daemon: one table of options; flags, environment, file and docs from it."""

from umaserve.config.flags import add_flags as add_flags
from umaserve.config.flags import flag_values as flag_values
from umaserve.config.kinds import SOCKET_PATH_BYTES as SOCKET_PATH_BYTES
from umaserve.config.kinds import host_and_port as host_and_port
from umaserve.config.load import load_config as load_config
from umaserve.config.options import OPTIONS as OPTIONS
from umaserve.config.options import Option as Option
from umaserve.config.settings import Config as Config
from umaserve.config.settings import ConfigError as ConfigError
