"""Folders of training runs that were damaged, moved or made by others: nothing is lost, and no code of theirs runs."""

import json
import shutil

import pytest

import fastmarl
from fastmarl import cli
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
    assert "damaged; move it away to start a new file" in capsys.readouterr().err
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


def files_in(path):
    return {each: each.read_bytes() for each in (path, *path.rglob("*")) if each.is_file()}


def test_links_of_other_programs_stay(run):
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (run / "notes").symlink_to("/nowhere")
    assert cli.main(["train", "--resume", "my run", *MORE]) == 0
    assert (run / "wandb" / "latest-run").is_symlink() and (run / "notes").is_symlink()


@pytest.mark.parametrize("name", ["../{}/evil", "{}/evil", "/proc/self/cwd/evil", "no_such"])
def test_a_run_does_not_choose_which_file_is_run(run, here, name, capsys):
    (here / "evil.py").write_text("open('executed', 'w')")
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "algorithm": name.format("/.." * 20 + str(here))}))
    for command in (["evaluate", "my run"], ["evaluate", "my run", "--trust"], ["tournament", "a=my run", "b=my run"]):
        assert cli.main(command) == 1
        assert "fastmarl has no algorithm" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["train", "--resume", "my run"])
    assert not (here / "executed").exists()


def test_a_folder_does_not_replace_a_known_package_that_is_not_installed(run, monkeypatch, capsys):
    """The user has gone to the folder of others that has the run."""
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(
        json.dumps({**about, "options": {**about["options"], "env": "not_installed.evil_v4"}})
    )
    (run / "not_installed").mkdir()
    (run / "not_installed" / "__init__.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(run)
    monkeypatch.setattr("fastmarl.core.envs.registry._KNOWN_PACKAGES", {"not_installed"})
    assert cli.main(["evaluate", "."]) == 1
    assert "not_installed" in capsys.readouterr().err
    assert not (run / "executed").exists()


def test_commands_for_an_env_of_the_users_have_the_option_that_they_need(here, capsys):
    (here / "envs_of_mine.py").write_text("from fastmarl.bench.efficiency_table import ReadyDicts as env\n")
    args = ["--env", "my_folder.envs_of_mine", *SMALL[2:], "--folder", "run"]
    (here / "my_folder").mkdir()
    shutil.move(here / "envs_of_mine.py", here / "my_folder")
    assert cli.main(["train", "ippo", *args]) == 0
    assert "fastmarl evaluate run --trust\n" in capsys.readouterr().out


def test_a_checkpoint_of_a_run_is_not_taken_for_the_run(run, capsys):
    before = sorted((run / "checkpoint-0").iterdir())
    assert cli.main(["train", "--resume", "my run/checkpoint-0", *MORE]) == 1
    assert f"continues from its newest checkpoint: --resume '{run}'" in capsys.readouterr().err
    assert sorted((run / "checkpoint-0").iterdir()) == before


def test_half_a_checkpoint_is_not_taken_for_one_that_is_written(run, capsys):
    """It was copied without its state."""
    shutil.copytree(run / "checkpoint-0", run / "checkpoint-300", ignore=shutil.ignore_patterns("state.json"))
    assert cli.main(["train", "--resume", "my run", *MORE]) == 1
    assert "no checkpoint after 300 env steps: Directory not empty" in capsys.readouterr().err
    shutil.rmtree(run / "checkpoint-300")
    assert cli.main(["train", "--resume", "my run", *MORE]) == 0


def test_what_no_run_has_written_survives_overwriting(run, here):
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
def test_options_of_the_wrong_kind_are_not_taken(run, wrong, capsys):
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "options": {**about["options"], **wrong}}))
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
