"""The migration table in docs/old_stack.md has each public member of RLlib's classes, and says what is true."""

import ast
import pathlib
import re

import pytest
from ray.rllib.evaluation.env_runner_v2 import EnvRunnerV2 as RLlibRunner
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker

from fastmarl.legacy import EnvRunnerV2, RolloutWorker

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "old_stack.md").read_text()
TABLES = [
    dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE))
    for part in PAGE.split("### Migration")[1].split("Members of RLlib's `EnvRunnerV2`")
]
ELSEWHERE = {"setup_torch_data_parallel": "tests/legacy/test_legacy_data_parallel.py"}


def tested() -> set[str]:
    """Names of the functions in test_legacy_members.py."""
    tree = ast.parse((ROOT / "tests/legacy/test_legacy_members.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("table", "theirs", "ours"), [
    (TABLES[0], RLlibWorker, RolloutWorker),
    (TABLES[1], RLlibRunner, EnvRunnerV2),
], ids=["RolloutWorker", "EnvRunnerV2"])  # fmt: skip
def test_every_member_stands_in_the_table_and_has_a_test(table, theirs, ours):
    assert set(table) == {name for name in dir(theirs) if not name.startswith("_")}
    for member, here in table.items():
        assert hasattr(ours, member) == (not here.startswith("not here")), member
        if hasattr(ours, member) and member not in ELSEWHERE:
            assert f"test_{member}" in tested()
    for member, name in ELSEWHERE.items():
        assert member in (ROOT / name).read_text()
