"""Features of the old stack's sampler that need Ray: environments in actors, and stashed policies."""

import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig, PPOTorchPolicy
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.policy.policy_map import PolicyMap
from rllib.old_stack.fuzz import remote_case, stashing_case
from rllib.old_stack.runs import differences, play
from support.exhaustive import further

from fastmarl.rllib import RolloutWorker

OBS, ACT = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(5)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray", "sent_by_value"), pytest.mark.xdist_group("ray")]


class Echo(MultiAgentEnv):
    """Pays each agent the number of its action; `early` agents end before the others."""

    def __init__(self, config):
        super().__init__()
        self.early = config.get("early", 0)
        self.possible_agents = self.agents = ["a", "b"]
        self.observation_spaces, self.action_spaces = dict.fromkeys("ab", OBS), dict.fromkeys("ab", ACT)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {agent: np.zeros(3, np.float32) for agent in "ab"}, {}

    def step(self, actions):
        self.t += 1
        obs = {agent: np.full(3, self.t / 10, np.float32) for agent in actions}
        ended = {"a": True} if self.t == self.early else {}
        over = {**ended, "__all__": self.t >= 7}
        return obs, {agent: float(action) for agent, action in actions.items()}, over, {"__all__": False}, {}


def make_worker(worker_class, policies, mapping, env_config, **env_runners):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(Echo, env_config=env_config, disable_env_checking=True)
        .multi_agent(policies={name: (None, OBS, ACT, {}) for name in policies}, policy_mapping_fn=mapping)
        .multi_agent(policy_map_capacity=3)
        .env_runners(num_env_runners=0, rollout_fragment_length=10, **env_runners)
        .training(model={"fcnet_hiddens": [8]})
        .debugging(seed=11)
    )
    return worker_class(env_creator=Echo, config=config, default_policy_class=PPOTorchPolicy)


@pytest.mark.parametrize("early", [pytest.param(0, marks=pytest.mark.exhaustive), 3])
def test_actions_of_remote_envs_are_those_that_were_sent(early):
    worker = make_worker(
        RolloutWorker,
        ["p0"],
        lambda *args, **kwargs: "p0",
        {"early": early},
        num_envs_per_env_runner=2,
        remote_worker_envs=True,
        remote_env_batch_wait_ms=3000,
    )
    try:
        for _ in range(8):
            batch = worker.sample().policy_batches["p0"]
            assert np.asarray(batch["actions"]).tolist() == np.asarray(batch["rewards"]).tolist()
            assert worker.is_accelerated
    finally:
        worker.stop()


def taken_from_map(worker_class, n_used):
    """After each call of sample(): which policies were stashed, in which order the map has the others, what was done.

    Episodes are played by pairs of the first `n_used` of six policies; three are kept.
    """
    episodes = {}

    def mapping(agent, episode, **kwargs):
        n = episodes.setdefault(episode.episode_id, len(episodes))
        return f"p{(n + 'ab'.index(agent)) % n_used}"

    worker = make_worker(worker_class, [f"p{i}" for i in range(6)], mapping, {})
    stashed, stash = [], PolicyMap._stash_least_used_policy

    def note(self):
        stashed.append(self._deque[0])
        return stash(self)

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyMap, "_stash_least_used_policy", note)
        for _ in range(5):
            batches = worker.sample().policy_batches
            actions = {name: np.asarray(batch["actions"]).tolist() for name, batch in batches.items()}
            found.append((list(stashed), list(worker.policy_map._deque), actions))
            stashed.clear()
    return found


@pytest.mark.parametrize("n_used", [5, *further([2, 3])])
def test_policies_beyond_the_maps_capacity_are_taken_from_it_as_rllib_does(n_used):
    theirs, ours = taken_from_map(RLlibWorker, n_used), taken_from_map(RolloutWorker, n_used)
    assert ours == theirs
    assert any(stashed for stashed, _, _ in theirs[1:]) == (n_used > 3)


def test_a_stashed_policy_that_the_map_has_room_for_is_sampled_fast():
    used = []
    worker = make_worker(RolloutWorker, [f"p{i}" for i in range(4)], lambda *args, **kwargs: used[0], {})
    policies = worker.policy_map
    used.append(next(name for name in policies.keys() if name not in policies.cache))  # noqa: SIM118
    worker.remove_policy(policy_id=next(iter(policies.cache)))
    for _ in range(2):
        worker.sample()
        assert worker.is_accelerated and worker.slow_path_reasons == []


# With these seeds RLlib's worker returns the same twice. With others it draws missing last observations from the space
# of a restored policy, whose generator no seed determines.
@pytest.mark.parametrize("seed", [9, *further([0, 5, 14, 18])])
def test_random_cases_with_stashed_policies(seed):
    case = stashing_case(seed)
    lines = [*differences(play(case), play(case, RolloutWorker))]
    # Spaces of restored policies have new generators.
    assert not [line for line in lines if not line.startswith("left['policies']")], repr(case)


@pytest.mark.exhaustive
def test_a_random_case_with_envs_in_actors():
    case = remote_case(10)
    want, got = play(case), play(case, RolloutWorker)
    assert not [*differences(want, got)], repr(case)
    assert got.is_accelerated
