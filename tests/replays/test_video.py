"""Videos of live episodes, and of replayed ones."""

import functools
import gc
import sys

import numpy as np
import pytest
from support.full_disk import largest_file
from support.levels import Levels
from support.optional import needed
from support.replayed import record

import fastmarl
from fastmarl.errors import ConfigError, RecordingError
from fastmarl.replays.video import VideoFile, capped_cubic

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio's reader
imageio = needed("imageio.v2")
needed("imageio_ffmpeg")


class Painted(Levels):
    """Shows its env step as a grey, in a picture of odd size."""

    metadata = {"render_fps": 7}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.render_mode = config.get("render_mode")
        self.rendered = 0

    def render(self):
        self.rendered += 1
        return np.full((33, 49, 3), 20 * self.t, np.uint8) if self.render_mode == "rgb_array" else None


class Faint(Painted):
    def render(self):
        return np.full((8, 8, 3), 0.5)


def frames(path):
    with imageio.get_reader(path) as video:
        return [int(np.median(frame)) for frame in video], video.get_meta_data()["fps"]


def runner_with(make_callback, env=Painted, **options):
    env_config = options.pop("env_config", {"render_mode": "rgb_array"})
    config = fastmarl.EnvRunnerConfig(
        env=env, env_config=env_config, callbacks_class=make_callback, seed=0, num_envs_per_env_runner=3, **options
    )
    return fastmarl.MultiAgentEnvRunner(config)


@pytest.mark.slow
def test_chosen_episodes_of_one_env_are_filmed(tmp_path):
    make = functools.partial(fastmarl.VideoCallback, tmp_path, lambda number: number in (1, 3), name_prefix="film")
    with runner_with(make) as runner:
        chunks = [chunk for _ in range(20) for chunk in runner.sample(num_timesteps=13)]
        rendered = [env.rendered for env in runner.env.envs]
    lengths = {}
    for chunk in chunks:
        lengths[chunk.id_] = chunk.env_t
    seen = sorted(path.name for path in tmp_path.iterdir())
    assert seen == ["film-episode-1.mp4", "film-episode-3.mp4"]
    shades, fps = frames(tmp_path / "film-episode-1.mp4")
    assert fps == 7
    assert len(shades) - 1 in lengths.values()
    assert np.abs(np.array(shades) - 20 * np.arange(len(shades))).max() < 6
    assert rendered[1:] == [0, 0]
    assert rendered[0] == sum(len(frames(path)[0]) for path in tmp_path.iterdir())


@pytest.mark.slow
def test_steps_of_several_envs_in_workers_are_filmed(tmp_path):
    make = functools.partial(
        fastmarl.VideoCallback, tmp_path, step_trigger=lambda n: n == 4, video_length=2, fps=5, env_indices=[0, 2]
    )
    options = {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork", "num_env_workers": 1}
    with runner_with(make, worker_index=2, **options) as runner:
        runner.sample(num_timesteps=60)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("rl-video-worker-2-")
    shades, fps = frames(path)
    assert len(shades) <= 2
    assert fps == 5


@pytest.mark.slow
def test_envs_in_workers_say_how_they_render(tmp_path):
    make = functools.partial(fastmarl.VideoCallback, tmp_path)
    options = {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork", "num_env_workers": 1}
    with runner_with(make, **options) as runner:
        runner.sample(num_episodes=3)
    assert frames(tmp_path / "rl-video-episode-0.mp4")[1] == 7
    with pytest.raises(ConfigError, match="the render_mode of env 0 is 'human'"):
        runner_with(make, env_config={"render_mode": "human"}, **options)
    with runner_with(make, env_config={}, **options) as runner, pytest.raises(ConfigError, match=r"Painted.render\(\)"):
        runner.sample(num_timesteps=3)


def test_a_video_that_was_not_finished_leaves_nothing(tmp_path):
    make = functools.partial(fastmarl.VideoCallback, tmp_path, lambda number: True)
    with runner_with(make) as runner:
        runner.sample(num_timesteps=3)
        runner.make_env()
        assert not list(tmp_path.glob("*.mp4"))
        runner.sample(num_episodes=3)
        assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_an_unfinished_video_leaves_nothing(tmp_path):
    make = functools.partial(fastmarl.VideoCallback, tmp_path, lambda number: True)
    with runner_with(make) as runner:
        runner.sample(num_timesteps=3)
    del runner
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_second_run_numbers_its_videos_on(tmp_path):
    def film(length):
        make = functools.partial(fastmarl.VideoCallback, tmp_path, lambda number: True, video_length=length)
        with runner_with(make) as runner:
            runner.sample(num_timesteps=30)

    film(2)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(first) > 1
    (tmp_path / ".rl-video-episode-0-2.part.mp4").touch()  # of a run under way
    film(4)
    assert {name: (tmp_path / name).read_bytes() for name in first} == first
    assert len(frames(tmp_path / "rl-video-episode-0-3.mp4")[0]) == 4
    assert len(frames(tmp_path / "rl-video-episode-1-2.mp4")[0]) == 4


@pytest.mark.parametrize("n_frames", [4, pytest.param(80, marks=pytest.mark.slow)])  # it ends at once, or in the midst
def test_a_video_that_ffmpeg_could_not_write_is_an_error_and_leaves_nothing(n_frames, tmp_path, rng):
    file = VideoFile(tmp_path / "1.mp4", 30)

    def write():
        for _ in range(n_frames):
            file.add(rng.integers(255, size=(256, 256, 3), dtype=np.uint8))
        file.finish()

    with largest_file(50_000), pytest.raises(RecordingError, match=r"ffmpeg could not write .*1\.mp4: .*disk full"):
        write()
    file.close()
    assert not list(tmp_path.iterdir())


def test_envs_that_cannot_be_filmed_are_errors_at_once(tmp_path, monkeypatch):
    make = functools.partial(fastmarl.VideoCallback, tmp_path)
    with pytest.raises(ConfigError, match="the render_mode of env 0 is 'human'; create the env with render_mode"):
        runner_with(make, env_config={"render_mode": "human"})
    runner = runner_with(make, env_config={})
    with pytest.raises(ConfigError, match=r"Painted.render\(\) to return an array \[height, width, 3\], got NoneType"):
        runner.sample(num_timesteps=3)
    runner.stop()
    runner = runner_with(make, env=Faint)
    with pytest.raises(ConfigError, match=r"Faint.render\(\) to return an array of uint8, .* float64 from 0.5 to 0.5"):
        runner.sample(num_timesteps=3)
    runner.stop()
    with pytest.raises(ConfigError, match="VideoCallback supports only single envs, but CartPole is a batch"):
        runner_with(make, env="fastmarl.cart_pole", env_config={})
    with pytest.raises(ConfigError, match=r"env_indices of VideoCallback has \[3\], but there are 3 envs"):
        runner_with(functools.partial(make, env_indices=[3]))
    for options, text in [
        ({"fps": 0}, "fps must be"),
        ({"video_length": -1}, "video_length must be"),
        ({"episode_trigger": 3}, "episode_trigger must be None or a function"),
        ({"env_indices": 3}, "env_indices must be a collection of env indices, got 3"),
        ({"env_indices": ["0"]}, "env_indices must contain only integers, got '0'"),
        ({"name_prefix": None}, "name_prefix must be a string, got None"),
    ]:
        with pytest.raises(ConfigError, match=text):
            make(**options)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match="videos need imageio-ffmpeg: pip install imageio-ffmpeg "):
        make()


def test_usual_choice_is_gymnasiums():
    chosen = [number for number in range(2500) if capped_cubic(number)]
    assert chosen == [0, 1, 8, 27, 64, 125, 216, 343, 512, 729, 1000, 2000]


def test_a_recorded_episode_is_filmed(tmp_path):
    record(tmp_path / "run", Painted, steps=30)
    episode = fastmarl.replay(tmp_path / "run", 1, video=tmp_path / "films" / "1.mp4")
    shades, fps = frames(tmp_path / "films" / "1.mp4")
    assert len(shades) == len(episode) + 1
    assert fps == 7
    with pytest.raises(ConfigError, match="must end in"):
        fastmarl.replay(tmp_path / "run", 1, video=tmp_path / "1.gif")
    with pytest.raises(ConfigError, match="to return an array"):
        fastmarl.replay(tmp_path / "run", 1, video=tmp_path / "2.mp4", render_mode=None)
    assert not (tmp_path / "2.mp4").exists()


def test_an_env_config_that_is_not_on_record_is_asked_for_with_a_video_too(tmp_path):
    record(tmp_path / "run", Painted, {"what": object()}, steps=20)
    with pytest.raises(RecordingError, match=r"pass it again: replay\(..., env_config="):
        fastmarl.replay(tmp_path / "run", 0, video=tmp_path / "0.mp4")
    episode = fastmarl.replay(tmp_path / "run", 0, env_config={"what": 1}, video=tmp_path / "0.mp4")
    assert len(frames(tmp_path / "0.mp4")[0]) == len(episode) + 1
