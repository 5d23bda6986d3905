"""Check rules of CONTRIBUTING.md that linters don't know: lengths of files, functions, subjects."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("fastmarl", "benchmarks", "examples", "src_ext", "tools")
MOST_LINES, MOST_OF_ONE_CLASS = 400, 600
MOST_OF_FUNCTION = 50  # without its signature and docstring
MOST_PARAMETERS = 10  # of a constructor
SIGNATURES = {  # constructors with more
    "fastmarl/core/episodes/multi_agent.py": "RLlib's",
    "fastmarl/core/episodes/single_agent.py": "RLlib's",
    "fastmarl/learning/ppo_learner.py": "PPO's hyperparameters, by keyword",
    "fastmarl/learning/value_learner.py": "those of PPOLearner",
}
MOST_CHARACTERS = 72
N_COMMITS = 50  # only the newest; older commits stay as they are


def main() -> int:
    """Print all violations; returns the exit code."""
    paths = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py*"))
    problems = [*long_subjects()]
    for path in paths:
        if path.suffix in (".py", ".pyx"):
            name, text = path.relative_to(ROOT).as_posix(), path.read_text()
            tree = ast.parse(text) if path.suffix == ".py" else None
            problems += long_file(name, text, tree)
            problems += long_functions(name, tree) if tree else []
    print(*problems, sep="\n", end="\n" * bool(problems))
    return int(bool(problems))


def long_file(name: str, text: str, tree: ast.Module | None) -> Iterator[str]:
    n_classes = sum(isinstance(node, ast.ClassDef) for node in tree.body) if tree else 0
    most = MOST_OF_ONE_CLASS if n_classes == 1 else MOST_LINES
    n = len(text.splitlines())
    if n > most:
        yield f"{name} has {n} lines, {most} at most for {n_classes} classes: it holds more than one thing"


def long_functions(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if lines > MOST_OF_FUNCTION:
                yield f"{name}:{node.lineno} {node.name}() has {lines} lines, {MOST_OF_FUNCTION} at most"
            n = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1
            if node.name == "__init__" and n > MOST_PARAMETERS and name not in SIGNATURES:
                yield f"{name}:{node.lineno} a constructor has {n} parameters, {MOST_PARAMETERS} at most"


def long_subjects() -> list[str]:
    command = ["git", "log", f"--max-count={N_COMMITS}", "--no-merges", "--format=%h %s"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commits = [line.split(" ", 1) for line in log.splitlines()]
    return [
        f"the subject of commit {commit} has {len(subject)} characters, {MOST_CHARACTERS} at most: {subject}"
        for commit, subject in commits
        if len(subject) > MOST_CHARACTERS
    ]


if __name__ == "__main__":
    sys.exit(main())
