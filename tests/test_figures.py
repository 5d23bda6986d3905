"""Speeds on the pages come from files of results, and stand in the sections of measurements that the pages link to."""

import csv
import json
import re
from pathlib import Path
from statistics import fmean, median

import pytest

from benchmarks.peers import report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
SUMMARY, RECORD, REPRODUCED = ROOT / "docs/benchmarks.md", RESULTS / "benchmarks.md", ROOT / "docs/results.md"
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if page not in (SUMMARY, REPRODUCED)]
FIGURE = r"(?<![\w.,-])(?:\d[\d,]*\d|\d)(?:\.\d+)?(?![\w%]|,\d)"
UNIT = r"(?:µs|ns|MiB|times (?:as (?:fast|much|long)|faster)|agent steps per second)\b"
SPEED = rf"({FIGURE})(?: (?:to|and) ({FIGURE}))?(?:\]\([^)]*\))? {UNIT}"


def sections_of(page: Path) -> dict[str, str]:
    """Return the text below each heading up to the next one, without code; the key is the anchor of the heading."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles_and_texts = re.split(r"^#+ (.+)\n", text, flags=re.MULTILINE)[1:]
    titles = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles_and_texts[::2]]
    return dict(zip(titles, titles_and_texts[1::2], strict=True))


def figures_in(text: str) -> set[str]:
    return {figure.replace(",", "") for figure in re.findall(FIGURE, text)}


def speeds_in(text: str) -> set[str]:
    """Return figures with a unit of speed, and those in tables if the section is about speed."""
    speeds = {figure for pair in re.findall(SPEED, text.replace("\n", " ")) for figure in pair if figure}
    tables = (
        re.findall(r"^\|.*\|$", text, re.MULTILINE) if re.search("CPU time\\b.* agent step|[Ss]peed-up", text) else []
    )
    return {figure.replace(",", "") for figure in speeds}.union(*map(cells_of, tables))


def cells_of(row: str) -> set[str]:
    """Return the figures in those cells of a row that contain nothing else."""
    cells = [cell for cell in row.split("|") if re.fullmatch(rf" {FIGURE}(?: to {FIGURE})?(?: µs)? ", cell)]
    return set().union(*map(figures_in, cells))


def linked_figures(page: Path, text: str) -> set[str]:
    """Return all figures in the sections of measurements, and in the records of decisions, that a text links to."""
    found = set()
    for name, anchor in re.findall(r"\]\((\S*?\.md)(?:#(\S+?))?\)", text):
        target = (page.parent / name).resolve()
        if anchor and target in (SUMMARY, RECORD, REPRODUCED):
            found |= figures_in(sections_of(target)[anchor])
        elif target.parent.name == "decisions":
            found |= figures_in(target.read_text())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_speeds_stand_in_the_measurements_that_their_section_links_to(page):
    for title, text in sections_of(page).items():
        assert speeds_in(text) <= linked_figures(page, text), title
        for row in re.findall(r"^\|.*\]\(.*\|$", text, re.MULTILINE):  # a row with a link has its figures there
            assert not re.search(r"(?:benchmarks|results)\.md#", row) or cells_of(row) <= linked_figures(page, row), row


def test_the_pages_have_speeds():
    assert sum(len(speeds_in(text)) for page in PAGES for text in sections_of(page).values()) > 40


def test_the_summary_has_the_figures_of_the_record():
    record = sections_of(RECORD)
    summary = sections_of(SUMMARY)
    del summary["benchmarks"], summary["how-it-was-measured"]
    for title, text in summary.items():
        text = re.sub(r"\([^()]*\b(?:November|December) ?[^()]*\)|`[^`]*`|\]\([^)]*\)", "", text)
        assert figures_in(text) <= figures_in(record[title]), title


def test_relative_speeds_of_samplers_are_those_of_the_recorded_run():
    of_kinds = json.loads((RESULTS / "peers.json").read_text())["settings"]
    settings = [report.cells(each) for each in of_kinds if each["env"] == "spread" and not each["num_workers"]]
    rows = sections_of(SUMMARY)["other-samplers"].replace("*", "")
    for name in settings[0].keys() - {report.LIMIT}:
        assert f" | {' | '.join(f'{cells[name].to_limit:.2f}' for cells in settings)} |\n" in rows, name


def test_times_to_a_return_are_those_of_the_recorded_runs():
    learners = json.loads((RESULTS / "time_to_return.json").read_text())
    rows = sections_of(SUMMARY)["time-to-the-same-return"]
    for name, runs in learners.items():
        seconds, env_steps = (median(run[key] for run in runs) for key in ("cpu_seconds", "env_steps"))
        assert f" | {seconds:.1f} s | {env_steps:,.0f} |\n" in rows, name


def test_training_times_of_the_gallery_are_those_of_the_recorded_curves():
    rows = re.findall(r"^\| \[`(\w+)\.py`\].* \| (\d+) s \|$", (ROOT / "docs/gallery.md").read_text(), re.MULTILINE)
    assert len(rows) > 6
    for name, seconds in rows:
        curves = [[*csv.DictReader(path.read_text().splitlines())] for path in (RESULTS / "curves" / name).iterdir()]
        assert int(seconds) == round(fmean(float(curve[-1]["cpu_seconds"]) for curve in curves)), name
