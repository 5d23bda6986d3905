"""Record a video of an episode for each task with policies in zoo/, in the original environments.

    python -m benchmarks.reproduce.videos

pyglet renders without a screen where there is EGL, pygame by its dummy driver.
"""

import functools
import importlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pyglet

import fastmarl
from benchmarks.reproduce.tasks import TASKS
from fastmarl.cli.runs import example, load_run
from fastmarl.training.run_folder import checkpoint_in

ROOT = Path(__file__).parents[2]
ALGORITHMS = "mappo", "ippo"  # the first one with a policy plays
SEED, FRAMES, FPS = 0, 150, 5


def main() -> None:
    pyglet.options["headless"] = True
    os.environ["SDL_VIDEODRIVER"] = "dummy"  # for pygame
    for name, task in TASKS.items():
        entries = [entry for algorithm in ALGORITHMS if (entry := ROOT / f"zoo/{name}-{algorithm}").exists()]
        for entry in entries[:1]:
            record(entry, task.original, ROOT / f"docs/images/results_{name}.mp4")


def record(entry: Path, original: str, path: Path) -> None:
    """Write a video of the first episode that the policy plays."""
    _, options = load_run(entry, trust=False)
    with tempfile.TemporaryDirectory() as folder:
        video = functools.partial(
            fastmarl.VideoCallback, folder, episode_trigger=lambda episode: episode == 0, video_length=FRAMES, fps=FPS
        )
        config = replace(
            example("epymarl").ALGORITHM.make_config(options), env=functools.partial(rendered, original), env_config={},
            num_envs_per_env_runner=1, callbacks_class=video, seed=SEED,
        )  # fmt: skip
        with fastmarl.MultiAgentEnvRunner.from_checkpoint(checkpoint_in(entry), config) as runner:
            runner.sample(num_episodes=1)
        next(Path(folder).iterdir()).replace(path)


def rendered(name: str, env_config: Mapping[str, Any]) -> Any:
    """Make an env whose `render()` returns arrays; those of lbforaging and rware need an argument."""
    if name.startswith("mpe2."):
        return importlib.import_module(name).parallel_env(render_mode="rgb_array")
    env = gym.make(name).unwrapped
    env.render = functools.partial(env.render, "rgb_array")
    return env


if __name__ == "__main__":
    main()
