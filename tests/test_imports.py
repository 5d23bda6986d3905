"""Holds the package's layers: a module imports from its own layer or from those before it, and never in a circle."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "fastmarl"
LAYERS = [
    ["errors", "columns", "kernels", "native"],
    [
        "config",
        "spaces",
        "seeds",
        "states",
        "locks",
        "masks",
        "episodes.summaries",
        "bench.figure_files",
        "bench.plots",
    ],
    ["record.lanes", "callbacks", "distributions", "moments"],
    ["envs", "record.block", "episodes.own_columns"],
    ["record", "episodes", "acting", "vector", "connectors", "modules", "runner.row_states", "runner.running_episodes"],
    [
        "checkpoint",
        "runner.building",
        "runner.devices",
        "runner.env_checkpoints",
        "runner.goals",
        "runner.metrics",
        "batches",
    ],
    ["runner"],
    ["testing", "bench", "efficiency"],
    ["rllib"],
    ["bench.rllib", "bench.peers"],
    ["cli", "__main__", "__init__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
OPTIONAL = {"ray", "pettingzoo", "mpe2", "magent2", "rich", "matplotlib", "psutil", "pygame", "pyspiel"}
STANDALONE = (
    PACKAGE / "bench" / "peers" / "children"
)  # a package of its own, which runs where fastmarl is not installed
FILES = sorted(path for path in PACKAGE.rglob("*.py") if STANDALONE not in path.parents)
CORE = [path for path in FILES if "rllib" not in path.relative_to(PACKAGE).parts]


def level_of(name: str) -> int:
    """The layer of the longest dotted name below `fastmarl` that is in `LAYERS`."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        if (level := LEVEL.get(".".join(parts[:n]))) is not None:
            return level
    raise AssertionError(f"give {name} a layer in LAYERS")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST, *, lazy: bool):
    """Import statements below `node` that run; those inside functions only if `lazy`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not is_type_checking(child) and (lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(child, lazy=lazy)


def imported_names(path: pathlib.Path, *, lazy: bool = True) -> set[str]:
    """Dotted names of what the file imports."""
    found = set()
    for node in imports(ast.parse(path.read_text()), lazy=lazy):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_imports(path: pathlib.Path) -> set[str]:
    """Dotted names below `fastmarl` of the modules that the file imports."""
    names = {name.removeprefix("fastmarl.") for name in imported_names(path) if name.startswith("fastmarl.")}
    return {name if name in NAMES else name.rpartition(".")[0] for name in names} - {""}


def name_of(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


NAMES = {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    level = level_of(name_of(path))
    for imported in own_imports(path):
        assert level_of(imported) <= level, f"{name_of(path)} may not import {imported}, which is in a later layer"


def whole(name: str) -> str:
    """The package, of those within which modules may be in a circle."""
    return name.split(".")[0] if name.startswith(("rllib.", "vector.")) else name


def test_no_import_circles():
    graph = {}
    for path in FILES:
        name = whole(name_of(path))
        graph.setdefault(name, set()).update({whole(imported) for imported in own_imports(path)} - {name})
    tuple(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_optional_packages_are_imported_only_where_they_are_used(path):
    allowed = set() if path in CORE else {"ray"}
    assert not {name.split(".")[0] for name in imported_names(path, lazy=False)} & OPTIONAL - allowed


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_never_names_ray(path):
    assert "ray" not in {name.split(".")[0] for name in imported_names(path)}


def test_importing_the_package_loads_no_optional_one():
    code = f"import sys, fastmarl; print(sorted({OPTIONAL!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
