"""Folders of training runs that were damaged, moved or made by others: nothing is lost, and no code of theirs runs."""

import json
import os
import re
import shutil
import signal
import socket

import pytest

import fastmarl
from fastmarl import cli
from fastmarl.errors import CheckpointError
from fastmarl.training.run_folder import RunFolder

SMALL = ["--env", "ready", "--num-envs", "4", "--steps", "200", "--episodes", "2", "--no-plot"]
MORE = ["--steps", "300", "--episodes", "2", "--no-plot"]


@pytest.fixture(autouse=True)
def here(working_folder):
    return working_folder


@pytest.fixture
def run(here):
    """The folder of a finished run, whose name a shell must see quoted."""
    assert cli.main(["train", "ippo", *SMALL, "--folder", "my run"]) == 0
    return here / "my run"


def checkpoints(run):
    return [each.name for each in RunFolder(run).checkpoints()]


def test_commands_that_are_shown_can_be_pasted(capsys, run):
    assert "fastmarl evaluate 'my run'\n" in capsys.readouterr().out
    assert cli.main(["train", "ippo", *SMALL, "--folder", "my run"]) == 1
    assert "--resume 'my run', or" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"garbage", b"step,x\n1,2,3\n1"])
def test_a_run_with_a_damaged_curve_stays_and_goes_on_without_it(run, content, capsys):
    (run / "curve.csv").write_bytes(content)
    assert cli.main(["train", "--resume", "my run", *MORE]) == 1
    assert "move it away to start a new file" in capsys.readouterr().err
    assert checkpoints(run) == ["checkpoint-200", "checkpoint-0"]
    (run / "curve.csv").unlink()
    assert cli.main(["train", "--resume", "my run", *MORE]) == 0
    assert checkpoints(run) == ["checkpoint-300", "checkpoint-200"]


@pytest.mark.parametrize(
    "name",
    ["curve.png", "curve.csv", "run.json", "record", "record/1.json", "wandb", "checkpoint-200",
     "checkpoint-200/state.json", "checkpoint-300"],
)  # fmt: skip
def test_training_follows_no_link_out_of_its_folder(run, here, name, capsys):
    (run / "record").mkdir()
    target, link = here / "target", run / name
    if link.exists():
        link.rename(target)
    link.symlink_to(target)
    before = files_in(target)
    assert cli.main(["train", "--resume", "my run", *MORE]) == 1
    assert f"my run/{name} is a link, which may lead out of the folder" in capsys.readouterr().err
    is_refused = cli.main(["train", "ippo", *SMALL, "--folder", "my run", "--overwrite"])
    assert link.is_symlink() == is_refused
    assert files_in(target) == before


def test_the_lock_is_no_link(run, here, capsys):
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(here / "target")
    for command in (["--resume", "my run", *MORE], ["ippo", *SMALL, "--folder", "my run", "--overwrite"]):
        assert cli.main(["train", *command]) == 1
        assert "my run can't be" in capsys.readouterr().err
    assert not (here / "target").exists()


@pytest.fixture
def alarm():
    """Raise an error in a call that waits for ever."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail("still waiting"))
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(os.path.relpath(path))


FILES = {"run.json", "curve.csv", "curve.png"}
ENTRIES = {*FILES, "record", "record/1.json", "checkpoint-200", "checkpoint-200/state.json",
           "checkpoint-200/learner/state.json", "checkpoint-300"}  # fmt: skip


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("make", [os.mkfifo, make_socket, os.mkdir], ids=["pipe", "socket", "folder"])
def test_training_neither_waits_for_nor_replaces_pipes_and_folders(run, here, make, capsys):
    (run / "record").mkdir()
    for entry in sorted(ENTRIES if make is not os.mkdir else FILES):
        copy = here / "copy"
        shutil.copytree(run, copy)
        if (copy / entry).is_dir():
            shutil.rmtree(copy / entry)
        (copy / entry).unlink(missing_ok=True)
        make(copy / entry)
        code = None
        try:
            code = cli.main(["train", "--resume", "copy", *MORE])
        except SystemExit as stopped:  # options can't be read
            code = stopped.code
        assert code and f"copy/{entry}" in capsys.readouterr().err
        assert not (copy / entry).is_file() and not (copy / "checkpoint-300/state.json").exists()
        shutil.rmtree(copy)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    "entry", ["run.json", "checkpoint-0/arrays", "checkpoint-0/state.json", "record/json", "record/actions"]
)
def test_commands_that_play_do_not_wait_for_pipes(here, entry, capsys):
    options = ["--env", "fastmarl.cart_pole", "--hiddens", "4", *SMALL[2:], "--record-actions", "--folder", "run"]
    assert cli.main(["train", "ippo", *options]) == 0
    folder, _, name = entry.rpartition("/")
    files = [each for each in (here / "run" / folder).iterdir() if name in each.name]
    files[0].unlink()
    os.mkfifo(files[0])
    capsys.readouterr()
    if folder == "record":
        assert cli.main(["replay", "run"]) == 1
    elif folder:
        assert cli.main(["evaluate", "run/checkpoint-0", "--episodes", "2"]) == 1
    else:
        assert cli.main(["replay", "run"]) == 0
        for command in (["evaluate", "run"], ["evaluate", "run/checkpoint-0"], ["tournament", "a=run", "b=run"]):
            assert cli.main([*command, "--episodes", "2"]) == 1
            assert "not a regular file" in capsys.readouterr().err
        return
    assert re.search("not a regular file|run/checkpoint-0", capsys.readouterr().err)


def test_each_flipped_bit_of_the_options_is_found(run):
    """A space may become another one between the entries, which changes nothing."""
    file, written = run / "run.json", RunFolder(run).description()
    data, n_found = file.read_bytes(), 0
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        file.write_bytes(flipped)
        try:
            assert RunFolder(run).description() == written
        except CheckpointError:
            n_found += 1
    assert n_found > 7 * len(data)
    for size in range(0, len(data) - 1, 7):
        file.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"run.json is damaged or was changed by hand"):
            RunFolder(run).description()


def test_options_that_are_no_options_are_refused_at_once(run):
    """Files of earlier versions have no checksum; one of 100 GB would not fit into memory."""
    file = run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "sha256": None}))
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        RunFolder(run).description()
    file.write_text(
        json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "sha256"})
    )
    with pytest.raises(CheckpointError, match="no checksum: it is incomplete or was written by an earlier fastmarl"):
        RunFolder(run).description()
    for text in ("[]", "3", "null", '{"format": []}'):
        file.write_text(text)
        with pytest.raises(CheckpointError, match="is damaged or was changed by hand"):
            RunFolder(run).description()
    with file.open("r+b") as stream:
        stream.truncate(10**11)
    with pytest.raises(CheckpointError, match="larger than 16,777,216 bytes"):
        RunFolder(run).description()


def files_in(path):
    return {each: each.read_bytes() for each in (path, *path.rglob("*")) if each.is_file()}


def test_links_of_other_programs_stay(run):
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (run / "notes").symlink_to("/nowhere")
    assert cli.main(["train", "--resume", "my run", *MORE]) == 0
    assert (run / "wandb" / "latest-run").is_symlink() and (run / "notes").is_symlink()


@pytest.mark.parametrize("name", ["../{}/evil", "{}/evil", "/proc/self/cwd/evil", "no_such"])
def test_a_run_does_not_choose_which_file_is_run(run, here, name, change_options, capsys):
    (here / "evil.py").write_text("open('executed', 'w')")
    change_options(run, about={"algorithm": name.format("/.." * 20 + str(here))})
    for command in (["evaluate", "my run"], ["evaluate", "my run", "--trust"], ["tournament", "a=my run", "b=my run"]):
        assert cli.main(command) == 1
        assert "unknown algorithm" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", "my run"])
    assert not (here / "executed").exists()


def test_a_folder_does_not_replace_a_known_package_that_is_not_installed(run, change_options, monkeypatch, capsys):
    """The user has gone to the folder of others that has the run."""
    change_options(run, env="not_installed.evil_v4")
    (run / "not_installed").mkdir()
    (run / "not_installed" / "__init__.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(run)
    monkeypatch.setattr("fastmarl.core.envs.registry._KNOWN_PACKAGES", {"not_installed"})
    assert cli.main(["evaluate", "."]) == 1
    assert "not_installed" in capsys.readouterr().err
    assert not (run / "executed").exists()


def test_a_checkpoint_of_a_run_is_not_taken_for_the_run(run, capsys):
    before = sorted((run / "checkpoint-0").iterdir())
    assert cli.main(["train", "--resume", "my run/checkpoint-0", *MORE]) == 1
    assert f"resumes from its latest checkpoint: use --resume '{run}'" in capsys.readouterr().err
    assert sorted((run / "checkpoint-0").iterdir()) == before


def test_half_a_checkpoint_is_not_taken_for_one_that_is_written(run, capsys):
    """It was copied without its state."""
    shutil.copytree(run / "checkpoint-0", run / "checkpoint-300", ignore=shutil.ignore_patterns("state.json"))
    assert cli.main(["train", "--resume", "my run", *MORE]) == 1
    assert "can't save a checkpoint after 300 env steps: Directory not empty" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoint-300")
    assert cli.main(["train", "--resume", "my run", *MORE]) == 0


def test_files_of_other_programs_survive_overwriting(run, here):
    (run / "checkpoint-500").mkdir()
    (run / "checkpoint-500" / "pytorch_model.bin").touch()
    shutil.move(run / "checkpoint-0", here / "moved")
    (run / "checkpoint-0").symlink_to(here / "moved")
    assert cli.main(["train", "ippo", *SMALL, "--folder", "my run", "--overwrite"]) == 0
    assert (run / "checkpoint-500" / "pytorch_model.bin").exists()
    assert (here / "moved" / "state.json").exists()
    assert not (run / "checkpoint-0").is_symlink()


def test_overwriting_that_is_killed_can_be_repeated(run, monkeypatch):
    (run / f".curve.csv.{'0' * 32}").touch()

    def killed(path, *args, **options):
        (path / "state.json").unlink()
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            RunFolder.begin(run, "", overwrite=True)
    RunFolder.begin(run, "", overwrite=True).unlock()
    assert [each.name for each in run.iterdir()] == [".lock"]


@pytest.mark.parametrize("wrong", [{"env": 5}, {"module": "os:system"}, {"steps": "x"}, {"env_config": []}])
def test_options_of_the_wrong_kind_are_not_taken(run, wrong, change_options, capsys):
    change_options(run, **wrong)
    assert cli.main(["evaluate", "my run"]) == 1
    assert "run.json does not describe a training run" in capsys.readouterr().err


def test_a_folder_that_was_discarded_meanwhile_is_locked_again(here, monkeypatch):
    """The other process removes the lock's file between opening and locking it."""
    import fcntl

    folder, other = RunFolder(here / "run"), RunFolder.begin(here / "run", "", overwrite=False)
    lock = fcntl.flock

    def discard_first(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        other.discard()
        (here / "run").mkdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", discard_first)
    folder.lock()
    with pytest.raises(fastmarl.errors.ConfigError, match="another process"):
        RunFolder(here / "run").lock()
