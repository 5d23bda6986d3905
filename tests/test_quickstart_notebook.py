"""The notebook in examples/ runs from top to bottom, learns, and has no outputs in its file."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.exhaustive import further

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def code_cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def shown(source):
    """The cell, with its last expression shown as a notebook does."""
    cell = ast.parse(source)
    if isinstance(cell.body[-1], ast.Expr):
        cell.body[-1].value = ast.Call(ast.Name("show"), [cell.body[-1].value], [])
    return ast.unparse(ast.fix_missing_locations(cell))


def test_the_file_has_no_outputs():
    assert code_cells()
    for cell in code_cells():
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.needs("matplotlib", "onnx")
@pytest.mark.parametrize("learns", [False, *further([True])], ids=["two updates", "all updates"])
def test_the_cells_run_in_order_and_the_network_learns(tmp_path, learns):
    cells = [
        "def show(value):\n    print(getattr(value, '_repr_html_', value.__repr__)())",
        *(shown("".join(cell["source"])) for cell in code_cells()),
        "assert len(curve) == 200 and after.mean > before.mean + 5, (before, after)" if learns else "assert curve[1:]",
    ]
    code = "\n".join(cells)
    (tmp_path / "cells.py").write_text(code if learns else code.replace("range(200)", "range(2)"))
    env = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "cells.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("<table>") == 3  # of the runner, an episode and the evaluation
    assert (tmp_path / "quickstart.onnx").exists()
