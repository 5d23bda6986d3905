"""Let trained hares play an episode without a runner, and save it as a GIF: python watch.py runs/first"""

import sys
from collections.abc import Iterator
from pathlib import Path

from meadow import Meadow
from network import HareNet
from PIL import Image
from train import newest_checkpoint

import fastmarl


def play(policy: fastmarl.Policy, env: Meadow, seed: int) -> Iterator[Image.Image]:
    """Yield a picture of each step of an episode."""
    policy.reset()  # clear memory of earlier episodes (needed for recurrent networks)
    observations, _ = env.reset(seed=seed)
    yield Image.fromarray(env.render())
    while env.agents:
        alive = {hare: observations[hare] for hare in env.agents}
        observations, *_ = env.step(policy.act_batch(alive, explore=True))
        yield Image.fromarray(env.render())


def main(folder: Path) -> None:
    policy = fastmarl.Policy.from_checkpoint(newest_checkpoint(folder), modules={"hares": HareNet()}, seed=0)
    first, *others = play(policy, Meadow(render_mode="rgb_array"), seed=0)
    first.save(folder / "hares.gif", save_all=True, append_images=others, duration=125, loop=0)  # milliseconds


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
