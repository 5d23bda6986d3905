"""Holds the package's layers: a room imports from rooms below it only, and within a room no files are in a circle."""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "fastmarl"
LAYERS = [  # from the ground up: rooms of one layer don't import from each other
    ["errors", "columns", "kernels", "sealed_json", "version"],
    ["config", "exits", "spaces", "states", "callbacks", "checkpoint"],
    ["native"],
    ["moments", "distributions"],
    ["record"],
    ["episodes", "modules", "envs"],
    ["connectors", "batches", "learning", "envs.checking", "envs.jit"],
    ["acting.backends", "testing", "offline"],
    ["acting"],
    ["vector", "policy", "rllib.episodes"],
    ["vector.arrays", "vector.workers", "rllib.recording", "recorder"],
    ["runner", "rllib.acting", "rllib.connecting"],
    ["rllib.sampling", "rllib.learning", "rllib.old_stack", "legacy", "background"],
    ["rllib"],
    ["__init__"],
    ["bench"],
    ["bench.rllib", "bench.peers", "efficiency", "arena"],
    ["distributed"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
OPTIONAL = {
    "ray",
    "pettingzoo",
    "mpe2",
    "magent2",
    "rich",
    "matplotlib",
    "scipy",
    "psutil",
    "pygame",
    "pyspiel",
    "lz4",
    "tensorboard",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "imageio",
    "imageio_ffmpeg",
    "pyarrow",
    "minari",
}
STANDALONE = PACKAGE / "bench" / "peers" / "children"  # runs where fastmarl is not installed
PYTHON = sorted(path for path in PACKAGE.rglob("*.py") if STANDALONE not in path.parents)
COMPILED = sorted((ROOT / "src_ext").glob("*.pyx"))
FILES = [*PYTHON, *COMPILED]
BATCH_CLASSES = PACKAGE / "legacy" / "batches" / "classes.py"  # RLlib's own
WITH_RAY = [BATCH_CLASSES, PACKAGE / "distributed" / "ray_actors.py"]
CORE = [path for path in PYTHON if "rllib" not in path.relative_to(PACKAGE).parts and path not in WITH_RAY]


def name_of(path: pathlib.Path) -> str:
    """Dotted name below `fastmarl`."""
    if path.suffix == ".pyx":
        return f"native.{path.stem}"
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(name: str) -> str:
    """The longest part of a dotted name that is in `LAYERS`."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        if (room := ".".join(parts[:n])) in LEVEL:
            return room
    raise AssertionError(f"give {name} a layer in LAYERS")


NAMES = {name_of(path) for path in FILES}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST, *, lazy: bool):
    """Import statements below `node` that run; those inside functions only if `lazy`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not is_type_checking(child) and (lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(child, lazy=lazy)


@functools.cache
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


def compiled_imports(path: pathlib.Path) -> set[str]:
    found = re.findall(r"^\s*from (\S+) c?import (.+)$", path.read_text(), re.M)
    return {f"{module}.{name.strip()}" for module, names in found for name in names.split(",")}


def own_imports(path: pathlib.Path) -> set[str]:
    """Dotted names below `fastmarl` of the modules that the file imports."""
    found = compiled_imports(path) if path.suffix == ".pyx" else imported_names(path)
    names = {name.removeprefix("fastmarl").removeprefix(".") for name in found if name.split(".")[0] == "fastmarl"}
    return {name if name in NAMES else name.rpartition(".")[0] or "__init__" for name in names}


@functools.cache
def graph() -> dict[str, set[str]]:
    """Dotted name of each file -> those of the files that it imports."""
    return {name_of(path): own_imports(path) - {name_of(path)} for path in FILES}


def test_imports_point_down():
    for name, imported in graph().items():
        room = room_of(name)
        for other in map(room_of, imported):
            assert other == room or LEVEL[other] < LEVEL[room], f"{name} may not import from {other}"


def test_no_files_are_in_a_circle():
    tuple(graphlib.TopologicalSorter(graph()).static_order())


def test_optional_packages_are_imported_only_where_they_are_used():
    for path in PYTHON:
        allowed = set() if path in CORE else {"ray"}
        found = {name.split(".")[0] for name in imported_names(path, lazy=False)} & OPTIONAL
        assert found <= allowed, f"{path}: {found - allowed}"


def test_the_core_never_names_ray():
    for path in CORE:
        assert "ray" not in {name.split(".")[0] for name in imported_names(path)}, path


def test_importing_the_package_loads_no_optional_one():
    code = f"import sys, fastmarl; print(sorted({OPTIONAL!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
