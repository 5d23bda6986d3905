"""`make count` compares instructions with the last record."""

import json

import pytest

from benchmarks.count_instructions import CASES, RESULTS, TOLERANCE, compare
from fastmarl.report.records import provenance

RECORD = {
    "instructions": [{"case": "a", "instructions": 1000.0}, {"case": "b", "instructions": 50.0}],
    "versions": {},
    "machine": {"cpu": provenance()["machine"]["cpu"]},
}


@pytest.mark.parametrize(
    ("counted", "is_good"),
    [
        ({"a": 1000.0, "b": 50.0}, True),
        ({"a": 1019.0, "b": 20.0}, True),
        ({"a": 900.0, "b": 51.2}, False),  # one case's gain does not pay for another's loss
        ({"a": 1000.0, "c": 1.0}, False),  # nothing to compare with
    ],
)
def test_compare(counted, is_good, capsys):
    rows = [{"case": case, "instructions": number} for case, number in counted.items()]
    assert compare(rows, RECORD) is is_good
    output = capsys.readouterr().out
    assert output.count("too many") == (not is_good)
    assert ("make count RECORD=1" in output) is not is_good


def test_other_cpu(capsys):
    record = RECORD | {"machine": {"cpu": "another"}}
    assert compare([{"case": "a", "instructions": 2000.0}], record)
    assert "recorded on another" in capsys.readouterr().out


def test_all_cases_have_figures():
    last = json.loads(RESULTS.read_text().splitlines()[-1])
    assert [row["case"] for row in last["instructions"]] == [*CASES]
    assert 0 < TOLERANCE < 0.05
