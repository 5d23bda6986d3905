"""The published package: a source distribution with everything in it, and a page with working links."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import fastmarl

ROOT = Path(__file__).parents[1]
PAGE = runpy.run_path(str(ROOT / "tools" / "index_page.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = re.findall(r":: Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
URL = "https://example.org/us/fastmarl"
FOLDERS = (".github/workflows", "benchmarks", "docs", "examples", "fastmarl", "src_ext", "tests", "tools")
PAGES = [path.name for path in ROOT.glob("*.md")]
FILES = [
    ".ci/run", "CITATION.cff", "LICENSE", "MANIFEST.in", "Makefile", "constraints.txt", "mkdocs.yml", "pyproject.toml",
    "setup.py", *PAGES,
]  # fmt: skip
MADE = {".so", ".pyc", ".nbi", ".nbc"}


@pytest.mark.slow
def test_the_source_distribution_is_complete(tmp_path):
    # Another egg-base, as the one in the clone may belong to an editable installation.
    command = ["setup.py", "--quiet", "egg_info", "--egg-base", tmp_path, "sdist", "--dist-dir", tmp_path]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    expected = {path.relative_to(ROOT).as_posix() for path in sources if path.suffix not in MADE} | set(FILES)
    assert expected <= held
    assert not {name for name in held if Path(name).suffix in MADE}


@pytest.mark.slow
def test_a_wheel_has_the_examples_in_its_package(tmp_path):
    command = ["setup.py", "--quiet", "egg_info", "--egg-base", tmp_path, "build_py", "--build-lib", tmp_path]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert {path.name for path in (tmp_path / "fastmarl" / "examples").glob("*.py")} == names
    code = "from fastmarl.cli.train import example; print(example('ippo').__file__)"
    for native in (ROOT / "fastmarl/core/native").glob("*.so"):
        shutil.copy(native, tmp_path / "fastmarl/core/native")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert found.stdout.strip() == str(tmp_path / "fastmarl" / "examples" / "ippo.py"), found.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md#b)", f"[a]({URL}/blob/main/docs/a.md#b)"),
        ("![a](./docs/a.png)", f"![a]({URL}/raw/main/docs/a.png)"),
        ("[![a](a.png)](b.md)", f"[![a]({URL}/raw/main/a.png)]({URL}/blob/main/b.md)"),
        ("[![a](../../a.svg)](../../a)", f"[![a]({URL}/a.svg)]({URL}/a)"),
        ("[text over\nlines](a.md)", f"[text over\nlines]({URL}/blob/main/a.md)"),
        ("[`x`](a.md)", f"[`x`]({URL}/blob/main/a.md)"),
        ("[here](#part) [there](https://a.b/c) [mail](mailto:a@b.c)", None),
        ("`[a](b)` and\n```md\n[a](b)\n```\n", None),
    ],
)
def test_relative_links_lead_to_the_repository(text, expected):
    assert PAGE["absolute_links"](text, URL) == (text if expected is None else expected)
    assert PAGE["absolute_links"](text, None) == text


def test_all_links_of_the_readme_are_made_absolute():
    page = PAGE["absolute_links"]((ROOT / "README.md").read_text(), URL)
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)]*)\)", prose) + re.findall(r'(?:src|href)="([^"]*)"', prose)
    assert targets
    assert [target for target in targets if not re.match(r"https?://|#", target)] == []


def test_all_links_of_pages_outside_docs_lead_somewhere():
    """`make docs` checks the others."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.*")]
    links = [(path, *link) for path in paths for link in re.findall(r"\]\(([^):#]*)(#[^)]*)?\)", path.read_text())]
    assert len(links) > 100
    for path, target, anchor in links:
        target = re.sub(r"^\.\./\.\./actions/(workflows/\w+\.yml).*", r".github/\1", target)  # its page or badge
        page = ROOT / target.removeprefix("../blob/main/") if target else path
        assert page.exists(), (path.name, target)
        assert not anchor or anchor[1:] in anchors_of(page), (path.name, target, anchor)


def anchors_of(page):
    headings = re.findall(r"^#+ (.+)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_version_and_date_are_the_same_everywhere():
    def first(pattern, path):
        return re.search(pattern, (ROOT / path).read_text(), re.MULTILINE).groups()

    (version,) = first(r'^version = "(.+)"', "pyproject.toml")
    released = first(r"^## (\d\S*) \((.+)\)$", "CHANGELOG.md")
    cited = first(r'^version: (.+)\ndate-released: "(.+)"$', "CITATION.cff")
    (title,) = first(r'^title: "(.+)"$', "CITATION.cff")
    assert released == cited == (version, cited[1])
    assert fastmarl.__version__ == version
    citation = f"*The fastmarl maintainers ({cited[1][:4]}). {title}, version {version}*"
    assert citation in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("git@example.org:us/fastmarl.git", URL),
        ("ssh://git@example.org/us/fastmarl.git", URL),
        ("https://example.org/us/fastmarl.git", URL),
        ("/srv/fastmarl", None),
        ("", None),
    ],
)
def test_the_repositorys_address_is_that_of_its_origin(monkeypatch, origin, address):
    function = PAGE["repository_url"]
    monkeypatch.delenv("FASTMARL_REPOSITORY_URL", raising=False)
    monkeypatch.setitem(function.__globals__, "_origin", lambda: origin)
    assert function() == address
    monkeypatch.setenv("FASTMARL_REPOSITORY_URL", f"{URL}/")
    assert function() == URL


def test_the_addresses_of_a_project():
    assert PAGE["project_urls"](None) == {}
    urls = PAGE["project_urls"](URL)
    assert urls["Homepage"] == URL
    for name in ("Documentation", "Changelog"):
        path = urls[name].removeprefix(f"{URL}/blob/main/")
        assert (ROOT / path).is_file()


@pytest.fixture
def clone(tmp_path):
    """A folder with a package that has two stubs and no extensions."""
    package = tmp_path / "fastmarl"
    native = package / "core/native"
    native.mkdir(parents=True)
    for name in ("core/__init__", "core/errors/__init__", "core/objects/public", "core/native/__init__"):
        (package / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "fastmarl" / f"{name}.py", package / f"{name}.py")
    (package / "__init__.py").touch()
    for name in ("_one.pyi", "_two.pyi", "_two.cpython-30-other.so"):
        (native / name).touch()
    return tmp_path


def what_importing_raises(clone, module):
    """The last line of the traceback."""
    command = [sys.executable, "-c", f"import {module}"]
    result = subprocess.run(command, cwd=clone, env={"PYTHONPATH": str(clone)}, capture_output=True, text=True)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


def test_a_clone_that_is_not_built_says_how_to_build_it(clone):
    line = what_importing_raises(clone, "fastmarl.core.native._one")
    assert line.startswith("fastmarl.errors.NotBuiltError: compiled extensions are missing in ")
    assert "(_one and 1 more, for Python 3." in line
    assert "`make build`" in line and "`pip install .`" in line


def test_other_import_errors_of_a_built_clone_stay(clone):
    for name in ("_one", "_two"):
        (clone / "fastmarl/core/native" / f"{name}{EXTENSION_SUFFIXES[0]}").write_text("no library")
    assert what_importing_raises(clone, "fastmarl.core.native._one").startswith("ImportError: ")
    assert what_importing_raises(clone, "fastmarl.core.native._three").startswith("ModuleNotFoundError: ")


def test_every_extension_has_a_stub():
    stubs = {path.stem for path in (ROOT / "fastmarl/core/native").glob("*.pyi")}
    assert stubs == {path.stem for path in (ROOT / "src_ext").glob("*.pyx")}


def test_all_claims_name_the_same_pythons():
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    builds = re.findall(r"cp3(\d+)-manylinux_x86_64", PROJECT["tool"]["cibuildwheel"]["build"])
    assert [f"3.{minor}" for minor in builds] == PYTHONS
    matrix = re.search(r"python: \[(.+)\]", (ROOT / ".github/workflows/tests.yml").read_text())[1]
    assert matrix == ", ".join(f'"{version}"' for version in PYTHONS)
    assert f"CPython-{PYTHONS[0]}_to_{PYTHONS[-1]}-" in (ROOT / "README.md").read_text()
    default = re.search(r"^PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert default.split() == PYTHONS


def test_each_python_passed_with_its_oldest_and_newest_packages():
    tool = runpy.run_path(str(ROOT / "tools" / "tested_versions.py"))
    rows = tool["load"]()
    page = tool["PAGE"].read_text()
    assert tool["with_table"](page, rows) == page
    assert [(row["python"], row["packages"]) for row in rows] == [
        (python, packages) for python in PYTHONS for packages in ("oldest", "newest")
    ]
    assert not any(row["failed"] for row in rows)


def test_wheels_of_make_have_the_platform_of_cibuildwheel():
    platform = re.search(r"^WHEEL_PLATFORM := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert platform == PROJECT["tool"]["cibuildwheel"]["manylinux-x86_64-image"] + "_x86_64"


@pytest.fixture
def release_notes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return runpy.run_path(str(ROOT / "tools" / "release_notes.py"))


def test_the_notes_of_a_release_are_its_section(release_notes):
    newest = "- One\n  item.\n- Two\n\n```sh\na\nb\n```"
    changelog = f"# Changelog\n\n## 0.2.0 (2026-02-01)\n\n{newest}\n\n## 0.1.0 (2026-01-31)\n\nOld.\n"
    assert release_notes["notes"](changelog, "0.2.0") == newest.replace("One\n  item", "One item")
    assert release_notes["notes"](changelog, "0.1.0") == "Old."


@pytest.mark.parametrize("section", ["0.1.0 (unreleased)\n\nNew.", "0.1.1 (2026-01-31)\n\nNew.", "0.1.0 (2026-01-31)"])
def test_a_release_needs_a_dated_section(release_notes, section):
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no section with a heading such as '## 0\.1\.0 \("):
        release_notes["notes"](f"# Changelog\n\n## {section}\n\n## 0.0.1 (2026-01-30)\n\nOld.\n", "0.1.0")


def test_a_tag_names_the_version(release_notes):
    with pytest.raises(SystemExit, match=r"the tag is v9\.9\.9, but pyproject\.toml has version 0\."):
        release_notes["main"]("v9.9.9")
