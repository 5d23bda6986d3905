"""RLlib's old API stack on `fastmarl.legacy`, row by row on both; docs/old_stack_api.md is made of the rows."""

from itertools import groupby

import pytest
from support.legacy_api import page
from support.legacy_api.table import ALONE, BOTH, NOT_THERE, NOTES, all_rows, faces

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


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.page(all_rows()), f"run {page.COMMAND}"
