"""RLlib's old API stack on `fastmarl.legacy`, row by row on both."""

import re
from pathlib import Path

import pytest
from support.api_tables import failed
from support.legacy_api.table import ALONE, BOTH, NOT_THERE, NOTES, all_rows, faces, our_class

PAGE = Path(__file__).parents[2] / "docs/old_stack.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's
]
KEYS = [key for rows in all_rows().values() for key in rows]


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    for face in faces():
        face.close()


@pytest.mark.parametrize("cls", all_rows())
def test_rows_hold_unless_there_is_a_reason(cls):
    assert failed((key, check) for key, check in all_rows()[cls].items() if key not in NOT_THERE) == {}


@pytest.mark.parametrize("key", NOT_THERE)
def test_members_with_a_reason_are_not_there(key):
    cls, name = key.split(".")
    assert not hasattr(our_class(cls), name)


def test_each_row_has_a_check_or_a_reason():
    checked = [f"{cls}.{name}" for checks in (BOTH, ALONE) for cls, members in checks.items() for name in members]
    assert sorted([*checked, *NOT_THERE]) == sorted(KEYS)
    assert NOTES.keys() <= set(checked)
    assert len(KEYS) >= 179
    assert len(NOT_THERE) <= 15


def test_the_page_names_the_missing_ones_and_no_others_that_are_equal():
    section = PAGE.read_text(encoding="utf-8").partition("### Members that differ")[2]
    missing, different = (set(re.findall(r"`(\w+\.\w+)`[,\s]", part)) for part in section.split("Different:"))
    assert missing == set(NOT_THERE)
    assert different and different <= NOTES.keys()
