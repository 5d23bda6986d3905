"""Draw the moving picture of trained agents in the README.

python examples/ippo.py --steps 12000000 --folder runs/ippo
(cd examples/first_project && python train.py --folder ../../runs/first)
export PYTHONPATH=examples/first_project
python benchmarks/trained_agents.py runs/ippo runs/first docs/images/trained_agents.gif
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import mpe2.simple_spread_v3
import numpy as np
from meadow import Meadow
from network import HareNet
from PIL import Image, ImageDraw, ImageFont
from train import newest_checkpoint
from watch import play

import fastmarl

STEPS, MS_PER_FRAME = 100, 80
SIDE, MARGIN, CAPTION = 360, 20, 40  # pixels: of a panel, around it, above it
REACH, FINER = 1.6, 3  # edge of the drawn world; pictures are drawn larger by this factor, for smooth edges
PAPER, INK, AGENT, LANDMARK = (255, 255, 255), (40, 40, 48), (60, 120, 190), (235, 200, 90)


def spread_pictures(checkpoint: Path) -> Iterator[Image.Image]:
    """Yield two pictures of each step, for episode after episode."""
    policy = fastmarl.Policy.from_checkpoint(checkpoint)
    env = mpe2.simple_spread_v3.parallel_env()
    for seed in range(STEPS // 25):
        observations, _ = env.reset(seed=seed)
        world = env.unwrapped.world
        before = places = _places(world.agents)
        while env.agents:
            for share in (0.5, 1.0):
                yield _spread_picture(before + share * (places - before), _places(world.landmarks))
            observations, *_ = env.step(policy.act_batch(observations))
            before, places = places, _places(world.agents)


def _places(entities: list) -> np.ndarray:
    return np.array([each.state.p_pos for each in entities])


def _spread_picture(agents: np.ndarray, landmarks: np.ndarray) -> Image.Image:
    picture = Image.new("RGB", (SIDE * FINER, SIDE * FINER), (244, 245, 248))
    draw = ImageDraw.Draw(picture)
    for places, radius, colour in ((agents, 0.15, AGENT), (landmarks, 0.05, LANDMARK)):
        for x, y in places:
            corners = np.array([(x - radius, -y - radius), (x + radius, -y + radius)])
            draw.ellipse([*((corners / REACH + 1) * SIDE * FINER / 2).ravel()], fill=colour)
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def meadow_pictures(folder: Path) -> Iterator[Image.Image]:
    """Yield each picture of an episode twice, to keep pace with the other panel."""
    policy = fastmarl.Policy.from_checkpoint(newest_checkpoint(folder), modules={"hares": HareNet()}, seed=0)
    for picture in play(policy, Meadow(render_mode="rgb_array"), seed=0):
        yield picture
        yield picture


def side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    picture = Image.new("RGB", (2 * SIDE + 4 * MARGIN, SIDE + CAPTION + MARGIN), PAPER)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(17)
    panels = (left, "simple_spread: cover all landmarks"), (right, "first project: eat clover, dodge the fox")
    for k, (panel, caption) in enumerate(panels):
        x = MARGIN + k * (SIDE + 2 * MARGIN)
        picture.paste(panel, (x, CAPTION))
        draw.text((x, CAPTION // 2), caption, INK, font, anchor="lm")
    return picture


def main(spread: Path, meadow: Path, path: Path) -> None:
    pairs = zip(spread_pictures(spread / "checkpoint"), meadow_pictures(meadow), strict=False)
    first, *others = (side_by_side(*pair).quantize(64, dither=Image.Dither.NONE) for pair in pairs)
    first.save(path, save_all=True, append_images=others, duration=MS_PER_FRAME, loop=0, optimize=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
