"""The examples, as modules: a wheel has them in the package, a clone beside it."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from fastmarl.core.errors import FastmarlError


def example(name: str) -> ModuleType:
    """The module of an example's file; `main()` was not called.

    Raises:
        FastmarlError: there is no such file.
    """
    package = Path(__file__).parents[1]
    paths = [package / "examples" / f"{name}.py", package.parent / "examples" / f"{name}.py"]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise FastmarlError(f"the example {name} is missing: looked for {' and '.join(map(str, paths))}")
    spec = spec_from_file_location(f"fastmarl_example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
