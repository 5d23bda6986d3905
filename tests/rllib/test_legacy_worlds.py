"""Batches of `fastmarl.legacy` and of RLlib in worlds where agents wait, or are not always in training."""

import numpy as np
import pytest
from support.legacy_api.faces import LENGTH, Clock, Ours, Theirs

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib's and Gymnasium's own
COLUMNS = ("t", "rewards", "terminateds", "truncateds", "agent_index", "obs", "new_obs")


class Waits(Clock):
    """Agent "b" is observed in every second step, and in the last one."""

    def seen(self):
        seen = super().seen()
        return seen if self.t % 2 == 0 or self.t == LENGTH else {"a": seen["a"]}

    def step(self, action_dict):
        obs, rewards, terminateds, truncateds, infos = super().step(action_dict)
        return (obs, {agent: rewards[agent] for agent in obs}, terminateds, truncateds,
                {agent: infos[agent] for agent in obs})  # fmt: skip


class Switches(Clock):
    """Agent "b" is in training until step 2 of each episode, and "a" from step 4 on."""

    def step(self, action_dict):
        *outcome, infos = super().step(action_dict)
        return *outcome, {"a": infos["a"] | {"training_enabled": self.t >= 4},
                          "b": infos["b"] | {"training_enabled": self.t <= 2}}  # fmt: skip


class NeverTrains(Clock):
    """No agent is ever in training."""

    def step(self, action_dict):
        *outcome, _ = super().step(action_dict)
        return *outcome, {agent: {"training_enabled": False} for agent in "ab"}


@pytest.fixture
def faces():
    made = Theirs(), Ours()
    yield made
    for face in made:
        face.close()


@pytest.mark.parametrize("env", [Clock, Waits, Switches, NeverTrains])
@pytest.mark.parametrize("mode", [("truncate_episodes", 3), ("truncate_episodes", 7), ("complete_episodes", LENGTH)])
def test_batches_have_the_same_steps(faces, env, mode):
    workers = [face.fresh({"env_creator": env}, batch_mode=mode[0], rollout_fragment_length=mode[1]) for face in faces]
    for call in range(6):
        theirs, ours = (worker.sample() for worker in workers)
        assert theirs.count == ours.count
        assert sorted(theirs.policy_batches) == sorted(ours.policy_batches), call
        for policy_id, batch in theirs.policy_batches.items():
            for name in COLUMNS:
                np.testing.assert_array_equal(batch[name], ours[policy_id][name], err_msg=f"{policy_id} {name} {call}")
            episodes = [np.unique(each["eps_id"], return_inverse=True)[1] for each in (batch, ours[policy_id])]
            assert len(set(episodes[0])) == len(set(episodes[1]))
