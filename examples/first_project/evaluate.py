"""Play the same episodes with trained and with random hares: python evaluate.py runs/first 200"""

import sys
from pathlib import Path
from typing import Any

import torch
from meadow import Meadow
from network import HareNet
from train import newest_checkpoint

import fastmarl


class RandomPlay(torch.nn.Module):
    """Makes all legal actions equally likely."""

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"action_dist_inputs": torch.zeros(batch["obs"]["action_mask"].shape)}


def main(folder: Path, episodes: int) -> None:
    torch.set_num_threads(1)
    trained = fastmarl.Policy.from_checkpoint(newest_checkpoint(folder), modules={"hares": HareNet()}, seed=0)
    plays = {"random": (RandomPlay(), True), "trained, sampled": (trained, True), "trained, greedy": (trained, False)}
    for name, (player, explore) in plays.items():
        found = fastmarl.evaluate(player, Meadow, episodes=episodes, seeds=range(episodes), explore=explore, seed=0)
        low, high = found.confidence_interval(0.95)
        print(f"{name:16}  mean return {found.mean:6.1f}  95 % interval {low:6.1f} to {high:6.1f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), episodes=int(sys.argv[2]))
