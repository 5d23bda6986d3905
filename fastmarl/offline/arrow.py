"""Import pyarrow, which is optional."""

from importlib import import_module
from typing import Any

from fastmarl.core.errors import ConfigError


def load(name: str = "pyarrow") -> Any:
    """Import and return the module `name`.

    Raises:
        ConfigError: If pyarrow is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError('Parquet files need pyarrow: pip install "fastmarl[io]"') from error
