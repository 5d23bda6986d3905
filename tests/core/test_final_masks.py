"""The mask of an agent's last observation, in aligned columns."""

import gymnasium as gym
import numpy as np
import pytest
from support.scripted import Says, Step, scripted

import fastmarl
from fastmarl.batches import aligned

SPACES = {
    "an array": (gym.spaces.Box(0, 9, (2,), np.float32), lambda agent, t: np.full(2, t, np.float32)),
    "an object": (gym.spaces.Text(9), lambda agent, t: str(t)),
    "objects": (gym.spaces.Sequence(gym.spaces.Discrete(9)), lambda agent, t: (t, t)),
}
FIRST, LATER = np.array([1, 0, 1], np.int8), np.array([0, 1, 1], np.int8)


def masked(mask):
    return {"a": {"action_mask": mask}}


@pytest.mark.filterwarnings("ignore:.*parts that are not arrays")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("end", "expected"), [
    (Step("a", truncated=True, infos=masked(FIRST)), FIRST),
    (Step("a", truncated=True), [1, 1, 1]),
    (Step("", truncated=True), LATER),  # the last observation is repeated, and so is its mask
], ids=["another mask", "no mask", "no observation"])  # fmt: skip
def test_final_masks_belong_to_the_final_observations(space, end, expected):
    obs_space, see = SPACES[space]
    script = [Step("a", infos=masked(FIRST)), Step("a", infos=masked(LATER)), end]
    config = fastmarl.EnvRunnerConfig(
        env=scripted(script, space=obs_space, see=see), policies={"p": Says(action_dist_inputs=[0.0] * 3)}
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        (batch,) = aligned(runner.sample(num_episodes=1)).values()
    assert batch["final_action_mask"].tolist() == [[list(expected)]]
    assert batch["continues"].tolist() == [[True]]
