"""The API of RLlib's runner and episodes, row by row on both faces."""

import re
from pathlib import Path

import pytest
from support.api_tables import failed
from support.rllib_api.table import NOTES, PARTS, REASONS

PAGE = Path(__file__).parents[2] / "docs/from_rllib.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's, Gymnasium's, and ours of arguments without effect
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__.split(".")[-1])
def test_rows_hold_unless_there_is_a_reason(part):
    rows = dict(part.rows())
    errors = failed(rows.items())
    assert {key: error for key, error in errors.items() if key not in REASONS} == {}
    mended = rows.keys() & REASONS.keys() - errors.keys()
    assert not mended, "they hold by now: take them out of REASONS"


def test_reasons_and_notes_are_of_rows():
    keys = [key for part in PARTS for key, _ in part.rows()]
    assert len(set(keys)) == len(keys)
    assert REASONS.keys() | NOTES.keys() <= set(keys)
    assert not REASONS.keys() & NOTES.keys()
    assert len(REASONS) <= 0.05 * len(keys), "95 % hold at least"


@pytest.mark.parametrize("key", [*REASONS, *NOTES])
def test_the_page_names_each(key):
    name = re.search(r": `?(?:\w+/)?(\w+)", key)[1]
    assert re.search(rf"\b{name}\b", PAGE.read_text(encoding="utf-8"))
