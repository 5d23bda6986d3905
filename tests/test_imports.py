"""Holds the house: a core that knows no runner and no wing, and no files in a circle.

Imports count wherever they stand: in functions, under TYPE_CHECKING, in `import_module()`, and as a module's name in a
string. docs/architecture.md shows these tables; the last test compares them.
"""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("imports")  # one process reads all files
ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "fastmarl"
# Modules of names alone: by these paths users import what the core defines, or a wing.
PUBLIC = {
    **dict.fromkeys(["batches", "checkpoint", "connectors", "distributions", "episodes", "errors", "modules"], "core"),
}
PACKAGES = {  # package -> others that it may import, besides the core
    "envs": [],
    "interop": ["runner"],
    "learning": [],
    "offline": [],
    "replays": [],
    "report": [],
    "runner": [],
    "testing": [],
    "rllib": ["learning"],
    "legacy": ["learning", "offline", "runner"],
    "play": ["report", "runner"],
    "bench": ["report", "runner"],
    "distributed": ["play", "runner"],
    "training": ["learning", "report", "runner"],
    "cli": ["bench", "play", "replays", "report", "rllib", "runner", "testing", "training"],
}
# Files that load a wing when a user asks for what is in it.
EXCEPTIONS = {"runner.loop.output": ["offline", "replays"], "core.envs.registry": ["envs"]}
LAYERS = {  # from the ground up: rooms of one layer don't import from each other
    "core": [
        ["errors", "kernels", "objects"],
        ["callbacks", "checkpoint", "processes", "spaces"],
        ["config", "envs", "modules", "native"],
        ["store"],
        ["episodes"],
        ["batches", "connectors"],
        ["nets", "vector"],
        ["inference"],
    ],
    "runner": [["metrics"], ["loop"], ["state"], ["runner"]],
    "rllib": [
        ["episodes", "fixes"],
        ["stand_in", "store"],
        ["connectors", "inference"],
        ["learner", "old_stack", "sampling"],
        ["metrics"],
        ["runner"],
        ["__init__"],
        ["check"],
    ],
}
OF_THE_DROP_IN = ("_rllib", "_step_keys", "_trajectories", "_ppo_exact")  # extensions that nothing else uses
SHARED = {  # files of the core that both runners stand on; the drop-in uses no other
    "errors": ["__init__", "exits"],
    "kernels": ["accumulate", "frames", "mean_std", "remap", "returns", "rows"],
    "modules": [*(f"distributions.{name}" for name in ("base", "continuous", "discrete", "nested")), "layers"],
    "native": [f"_{name}" for name in (
        "actions", "adam", "block_threads", "call_guard", "dense", "draws", "env_lanes", "env_values", "finite",
        "leaf_rows", "lease", "module_rows", "ppo", "records", "scatter", "store", "weights")],
    "nets": ["dense_layers", "forward_errors", "output_checks", "recurrent_state", "transfer"],
    "objects": ["public", "weakly"],
    "spaces": ["columns", "layout", "masks", "structs", "values"],
    "store": ["block", "lanes", "memory", "request", "room", "store"],
}  # fmt: skip
OPTIONAL = {
    "ray", "pettingzoo", "mpe2", "magent2", "rich", "matplotlib", "scipy", "psutil", "pygame", "pyspiel", "lz4",
    "tensorboard", "onnx", "onnxscript", "onnxruntime", "imageio", "imageio_ffmpeg", "pyarrow", "minari",
}  # fmt: skip
PYTHON = sorted(PACKAGE.rglob("*.py"))
COMPILED = sorted((ROOT / "src_ext").glob("*.pyx"))
FILES = [*PYTHON, *COMPILED]
WITH_RAY = [PACKAGE / "distributed" / "ray_actors.py"]
CORE = [path for path in PYTHON if "rllib" not in path.relative_to(PACKAGE).parts and path not in WITH_RAY]


def name_of(path: pathlib.Path) -> str:
    """Dotted name below `fastmarl`; that of `__init__.py` is its package's."""
    if path.suffix == ".pyx":
        return f"core.native.{path.stem}"
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


NAMES = {name_of(path) for path in FILES}


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST):
    """Import statements below `node` that run when the file is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not is_type_checking(child) and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(child)


def names_in(statements) -> set[str]:
    """Dotted names of what these statements import."""
    found = set()
    for node in statements:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unread(tree: ast.AST) -> set[ast.AST]:
    """Strings that import nothing: docstrings, and the paths that `@public` writes on classes."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "public"]
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)} | {call.args[0] for call in calls}


@functools.cache
def mentions(path: pathlib.Path) -> set[str]:
    """Dotted names of all that the file imports, in whatever way."""
    text = path.read_text()
    if path.suffix == ".pyx":
        found = re.findall(r"^\s*from (\S+) c?import (.+)$", text, re.M)
        return {f"{module}.{name.strip()}" for module, names in found for name in names.split(",")}
    tree = tree_of(path)
    strings = {node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = {node.value.partition(":")[0] for node in strings - unread(tree)}
    own = path.relative_to(PACKAGE).parts[0]
    wings = {name for name in named if name.startswith("fastmarl.") and name.split(".")[1] not in (own, *PUBLIC)}
    return names_in(ast.walk(tree)) | wings


def own_imports(path: pathlib.Path) -> set[str]:
    """Dotted names below `fastmarl` of the modules that the file imports."""
    found = {name.removeprefix("fastmarl.") for name in mentions(path) if name.startswith("fastmarl.")}
    parents = {name if name in NAMES else name.rpartition(".")[0] for name in found}
    return parents & NAMES | ({"__init__"} if "fastmarl" in mentions(path) else set())


@functools.cache
def graph() -> dict[str, set[str]]:
    """Dotted name of each file -> those of the files that it imports."""
    return {name_of(path): own_imports(path) - {name_of(path)} for path in FILES}


def allowed(name: str) -> set[str]:
    """Return the folders and files of `fastmarl/` that the file `name` may import from."""
    room = name.partition(".")[0]
    if room in PUBLIC:
        return {PUBLIC[room]}
    return {"core", room, *PACKAGES.get(room, []), *EXCEPTIONS.get(name, [])}


def test_packages_import_only_the_core_and_packages_in_their_row():
    for name, imported in graph().items():
        if name not in ("__init__", "__main__"):
            rooms = {other.partition(".")[0] for other in imported}
            assert rooms <= allowed(name), f"{name} may not import from {rooms - allowed(name)}"


def test_no_exception_is_idle():
    for room, others in PACKAGES.items():
        used = {
            other.partition(".")[0] for name, names in graph().items() if name.split(".")[0] == room for other in names
        }
        assert set(others) <= used, f"{room} imports nothing of {set(others) - used}"
    for name, others in EXCEPTIONS.items():
        assert set(others) <= {other.partition(".")[0] for other in graph()[name]}


@pytest.mark.parametrize("wing", LAYERS)
def test_imports_point_down(wing):
    level = {room: level for level, rooms in enumerate(LAYERS[wing]) for room in rooms}
    for name, imported in graph().items():
        (mine, *rooms) = (one.split(".") for one in (name, *imported))
        if mine[0] == wing and len(mine) > 1:
            for _, room, *_ in (parts for parts in rooms if parts[0] == wing and len(parts) > 1):
                assert room == mine[1] or level[room] < level[mine[1]], f"{name} may not import from {wing}.{room}"


def test_the_drop_in_stands_on_these_files_of_the_core():
    found: set[str] = set()
    todo = {name for name in graph() if name.startswith("rllib")}
    while todo:
        found |= todo
        todo = {other for name in todo for other in graph()[name]} - found
    shared = {f"core.{room}.{file}".removesuffix(".__init__") for room, files in SHARED.items() for file in files}
    of_drop_in = tuple(f"core.native.{name}" for name in OF_THE_DROP_IN)
    assert {name for name in found if name.startswith("core.") and not name.startswith(of_drop_in)} == shared


def test_no_files_are_in_a_circle():
    known = {name: {other for other in others if not is_exception(name, other)} for name, others in graph().items()}
    tuple(graphlib.TopologicalSorter(known).static_order())


def is_exception(name: str, other: str) -> bool:
    return other.partition(".")[0] in EXCEPTIONS.get(name, [])


def test_optional_packages_are_imported_only_where_they_are_used():
    for path in PYTHON:
        allowed = set() if path in CORE else {"ray"}
        found = {name.split(".")[0] for name in names_in(imports(tree_of(path)))} & OPTIONAL
        assert found <= allowed, f"{path}: {found - allowed}"


def test_the_core_never_names_ray():
    for path in [*CORE, *(path for path in COMPILED if not path.stem.startswith("_rllib"))]:
        assert "ray" not in {name.split(".")[0] for name in mentions(path)}, path


def test_importing_the_package_loads_no_optional_one():
    code = f"import sys, fastmarl; print(sorted({OPTIONAL!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_loads_torch_and_numba_only_where_it_needs_them():
    code = "import sys, fastmarl.cli; print(sorted({'numba', 'torch'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def tables() -> list[str]:
    """The house as docs/architecture.md shows it."""
    wings = [f"| `{wing}` | {listed(others) or 'nothing'} |" for wing, others in PACKAGES.items()]
    made = [["| package | imports, besides the core |", "|---|---|", *wings]]
    rows = [f"| `{room}` | {listed(files)} |" for room, files in SHARED.items()]
    made.append(["\n".join(["| directory of `core` | files |", "|---|---|", *rows])])
    for wing, layers in LAYERS.items():
        rows = [f"| {number} | {listed(rooms)} |" for number, rooms in enumerate(layers, 1)]
        made.append([f"| layer of `{wing}` | directories and files |", "|---|---|", *rows])
    return ["\n".join(rows) for rows in made]


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@pytest.mark.parametrize("table", tables(), ids=["wings", "shared", *LAYERS])
def test_the_docs_show_the_house(table):
    assert table in (ROOT / "docs/architecture.md").read_text(), f"put into docs/architecture.md\n{table}"
