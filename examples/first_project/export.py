"""Export the trained network as ONNX, and compare its actions in ONNX Runtime with the policy's:

python export.py runs/first
"""

import sys
from pathlib import Path

import onnxruntime
from meadow import Meadow
from network import HareNet
from train import newest_checkpoint

import fastmarl


def main(folder: Path) -> None:
    policy = fastmarl.Policy.from_checkpoint(newest_checkpoint(folder), modules={"hares": HareNet()})
    session = onnxruntime.InferenceSession(policy.export_onnx(folder / "hares.onnx"))
    observations, _ = Meadow().reset(seed=0)
    for hare, observation in observations.items():
        inputs = {f"obs.{key}": value[None] for key, value in observation.items()}
        (actions,) = session.run(None, inputs)
        assert actions[0] == policy.act(observation)
        print(hare, "chooses action", actions[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
