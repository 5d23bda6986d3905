"""Import of pyarrow, which is an optional dependency."""

from importlib import import_module
from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.packages import how_to_install


def load(name: str = "pyarrow") -> Any:
    """Import and return the module `name`.

    Raises:
        ConfigError: If pyarrow is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"Parquet files need pyarrow: {how_to_install('pyarrow')}") from error
