"""TensorDictEnv under TorchRL's own checks, collectors and losses."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.ledgered.worlds import WORLDS

import fastmarl
from fastmarl.errors import ConfigError, RunnerStoppedError

pytestmark = pytest.mark.needs("torchrl")


@pytest.fixture
def face():
    from fastmarl.interop.torchrl import TensorDictEnv

    return TensorDictEnv


BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


class Alone(fastmarl.MultiAgentEnv):
    """One agent, whose actions are kept; the third step fails if it is asked for."""

    def __init__(self, env_config):
        super().__init__()
        self.possible_agents, self.given, self.fails = ["a"], [], env_config.get("fails", False)
        self.observation_spaces = {"a": env_config.get("seen", BOX)}
        self.action_spaces = {"a": env_config.get("actions", gym.spaces.Discrete(2))}

    def reset(self, *, seed=None, options=None):
        self.given = []
        return {"a": self.observation_spaces["a"].sample()}, {}

    def step(self, actions):
        self.given.append(actions["a"])
        if self.fails and len(self.given) == 3:
            raise OSError("broken")
        return {"a": self.observation_spaces["a"].sample()}, {"a": 1.0}, {"__all__": False}, {"__all__": False}, {}


WORLDS_OF_EACH_KIND = (
    *("masks in observations", "masks of several choices", "continuous actions", "numbered observations"),
    *("images", "some wait, some act", "steps without agents"),
)


@pytest.mark.parametrize("env", ["fastmarl.simple_spread", *(WORLDS[name] for name in WORLDS_OF_EACH_KIND)])
def test_torchrl_finds_no_fault(face, env):
    from torchrl.envs.utils import check_env_specs

    made = face(env, num_envs=3, max_steps=9)
    check_env_specs(made, seed=1)
    made.close()


def test_seeds_decide_episodes(face):
    env = face("fastmarl.simple_spread", num_envs=2)
    found = []
    for seed in (5, 5, 6):
        env.set_seed(seed)
        found.append(env.reset()["agents", "observation"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(found[0][1], found[2][0])  # env e has seed + e


@pytest.mark.parametrize("space", [gym.spaces.Discrete(3, start=5), gym.spaces.MultiDiscrete([2, 3], start=[1, 4])])
def test_choices_count_from_0(face, space):
    from torchrl.envs.utils import check_env_specs

    env = face(Alone, num_envs=2, env_config={"seen": gym.spaces.Dict({"x": space, "y": BOX}), "actions": space})
    check_env_specs(env)
    env.rollout(5)
    for each in env._rows.envs:
        assert all(action in space for action in each.given[-4:])
    env.close()


UNSUPPORTED = [
    gym.spaces.Tuple([BOX]),
    gym.spaces.Box(-1, 1, (), np.float32),
    gym.spaces.Box(-1, 1, (0,), np.float32),
    gym.spaces.Box(0, 9, (2,), np.uint16),
    gym.spaces.MultiDiscrete([[2, 3], [4, 2]]),
    gym.spaces.MultiBinary((2, 2)),
]


@pytest.mark.parametrize("space", UNSUPPORTED, ids=str)
def test_unsupported_spaces_are_errors(face, space):
    for config in ({"seen": gym.spaces.Dict({"x": space})}, {"actions": space}):
        with pytest.raises(ConfigError, match="TensorDictEnv supports Discrete"):
            face(Alone, env_config=config)


def test_only_reset_envs_step_after_an_error(face):
    env = face(Alone, num_envs=3, env_config={"fails": True})
    with pytest.raises(OSError, match="broken"):
        env.rollout(5)
    data = env.reset()
    data["_reset"] = torch.tensor([[True], [False], [False]])
    with pytest.raises(OSError, match="broken"):
        env.rollout(5)
    data = env.reset(data)
    data["agents", "action"] = torch.ones((3, 1), dtype=torch.long)
    before = [len(each.given) for each in env._rows.envs]
    env.step(data)
    assert [len(each.given) for each in env._rows.envs] == [1, *before[1:]]


def test_mistakes_are_errors(face):
    env = face("fastmarl.simple_spread", num_envs=2)
    with pytest.raises(ConfigError, match="reset\\(\\) takes no options"):
        env.reset(difficulty=3)
    data = env.reset()
    data["agents", "action"] = torch.full((2, 3), 9)
    with pytest.raises(ConfigError, match=r"expected actions of Discrete\(5\) for 6 rows"):
        env.step(data)
    env.close()
    with pytest.raises(RunnerStoppedError, match="these envs are closed"):
        env.reset()


@pytest.mark.slow
def test_torchrls_collector_and_losses_learn(face):
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.modules import MultiAgentMLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives.multiagent import MAPPOLoss

    def net(n_outputs, *, centralised):
        sizes = {"n_agent_inputs": 18, "n_agent_outputs": n_outputs, "n_agents": env.n_agents}
        options = {"depth": 2, "num_cells": 64, "activation_class": torch.nn.Tanh}
        return MultiAgentMLP(**sizes, **options, centralised=centralised, share_params=True)

    torch.manual_seed(1)
    env = face("fastmarl.simple_spread", num_envs=32)
    env.set_seed(1)
    of_agents = TensorDictModule(
        net(5, centralised=False), in_keys=[("agents", "observation")], out_keys=[("agents", "logits")]
    )
    policy = ProbabilisticActor(
        of_agents, in_keys=[("agents", "logits")], out_keys=[env.action_key], return_log_prob=True,
        distribution_class=torch.distributions.Categorical,
    )  # fmt: skip
    critic = ValueOperator(
        net(1, centralised=True), in_keys=[("agents", "observation")], out_keys=[("agents", "state_value")]
    )
    loss = MAPPOLoss(actor_network=policy, critic_network=critic, entropy_coeff=0.01)
    of_group = {name: ("agents", name) for name in ("done", "terminated", "action", "reward")}
    loss.set_keys(**of_group, value=("agents", "state_value"), sample_log_prob=("agents", "action_log_prob"))
    loss.make_value_estimator(gamma=0.95, lmbda=0.95)
    optimizer = torch.optim.Adam(loss.parameters(), lr=2e-3)
    collector = Collector(env, policy, frames_per_batch=32 * 25, total_frames=60 * 32 * 25)
    returns = []
    for data in collector:
        returns.append(float(data["next", "agents", "reward"].sum() / 32))
        loss.value_estimator(data)
        for _ in range(4):
            for part in torch.randperm(800).split(200):
                found = loss(data.reshape(-1)[part])
                sum(value for name, value in found.items() if name.startswith("loss_")).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    collector.shutdown()
    assert np.mean(returns[:5]) < -65
    assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 8
