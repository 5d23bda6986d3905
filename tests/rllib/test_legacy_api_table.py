"""RLlib's old API stack on `fastmarl.legacy`, row by row on both."""

from itertools import groupby
from pathlib import Path

import pytest
from support.api_differences import table
from support.legacy_api.table import ALONE, BOTH, NOT_THERE, NOTES, all_rows, faces

PAGE = Path(__file__).parents[2] / "docs/old_stack.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's
]
ROWS = {cls: list(rows) for cls, rows in groupby(all_rows(), lambda row: row.cls)}


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    for face in faces():
        face.close()


@pytest.mark.parametrize("cls", ROWS)
def test_rows_hold_unless_there_is_a_reason(cls):
    failed = {row.key: row.error() for row in ROWS[cls] if row.key not in NOT_THERE}
    assert {key: error for key, error in failed.items() if error is not None} == {}


@pytest.mark.parametrize("key", NOT_THERE)
def test_members_with_a_reason_are_not_there(key):
    cls, name = key.split(".")
    ours = faces()[1]
    assert not hasattr(type(ours.policy) if cls == "Policy" else getattr(ours, cls), name)


def test_each_row_has_a_check_or_a_reason():
    checked = [f"{cls}.{name}" for checks in (BOTH, ALONE) for cls, members in checks.items() for name in members]
    assert sorted([*checked, *NOT_THERE]) == sorted(row.key for row in all_rows())
    assert NOTES.keys() <= set(checked)


def test_few_members_are_not_there():
    assert len(all_rows()) >= 179
    assert len(NOT_THERE) <= 15


@pytest.mark.parametrize("texts", [NOT_THERE, NOTES], ids=["not there", "notes"])
def test_the_page_shows_them(texts):
    assert table(texts) in PAGE.read_text(encoding="utf-8")
