"""Holds the package's layers: a module imports from its own layer or from those before it, and never in a circle."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "fastmarl"
LAYERS = [
    ["errors", "columns", "kernels", "_extensions"],
    ["config", "spaces", "seeds", "states", "locks", "summaries", "figures", "plots"],
    ["lanes", "callbacks", "metrics", "distributions", "moments"],
    ["envs", "block", "own_columns"],
    [
        "episodes",
        "single_agent_episode",
        "episode_getters",
        "episode_indices",
        "episode_sources",
        "agent_spaces",
        "chunk",
        "unread_chunks",
        "kept_chunks",
        "store",
        "array_group",
        "array_scatter",
        "vector",
        "connectors",
        "action_masks",
        "modules",
        "transfer",
        "env_actions",
        "env_states",
        "action_sampling",
        "capture",
        "graphs",
        "dense_layers",
        "lean",
        "capturable",
        "compiling",
        "devices",
        "lane_state",
        "output_checks",
        "row_states",
        "running_episodes",
        "inference",
        "episode_selection",
        "policies",
    ],
    ["checkpoint", "goals", "building", "batches", "env_checkpoints"],
    ["runner", "runner_episodes", "runner_evaluation", "runner_policies", "runner_state"],
    ["testing", "bare_envs", "efficiency", "efficiency_table", "sample_report", "scaling"],
    ["rllib"],
    ["peers"],
    ["cli", "__main__", "__init__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
OPTIONAL = {"ray", "pettingzoo", "mpe2", "magent2", "rich", "matplotlib", "psutil", "pygame", "pyspiel"}
STANDALONE = PACKAGE / "peers" / "children"  # a package of its own, which runs where fastmarl is not installed
FILES = sorted(path for path in PACKAGE.rglob("*.py") if STANDALONE not in path.parents)
CORE = [path for path in FILES if path.relative_to(PACKAGE).parts[0] != "rllib"]


def layer_of(name: str) -> str:
    """The top name below `fastmarl`; compiled extensions are one layer of their own."""
    return "_extensions" if name.startswith("_") and not name.startswith("__") else name


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
    """Layers' names that the file imports from this package."""
    return {layer_of(name.split(".")[1]) for name in imported_names(path) if name.startswith("fastmarl.")}


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    name = name_of(path)
    assert name in LEVEL, f"give {name} a layer in LAYERS"
    for imported in own_imports(path):
        assert LEVEL.get(imported, -1) <= LEVEL[name], f"{name} may not import {imported}, which is in a later layer"


def test_no_import_circles():
    graph = {}
    for path in FILES:
        graph.setdefault(name_of(path), set()).update(own_imports(path) - {name_of(path)})
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
