"""One ConnectorV2 in RLlib's runner and in ours: the same actions come of it."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from ray.rllib.connectors.module_to_env import GetActions, NormalizeAndClipActions
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

import fastmarl
from fastmarl import connectors
from fastmarl.errors import ConnectorError

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
NONE = [], [], []
BOX = gym.spaces.Box(-2, 6, (2,), np.float32)


class Drifting(MultiAgentEnv):
    """Observations depend on all actions so far. "b" waits in every second step, "c" leaves after 4 of 9."""

    def __init__(self, config=None):
        super().__init__()
        self.possible_agents = ["a", "b", "c"]
        self.observation_spaces = dict.fromkeys("abc", gym.spaces.Box(-999, 999, (3,), np.float32))
        self.action_spaces = dict.fromkeys("abc", BOX)

    def reset(self, *, seed=None, options=None):
        self.t, self.total = 0, 0.0
        self.agents = [*self.possible_agents]
        return self.seen(), {}

    def step(self, actions):
        self.t += 1
        self.total += sum(float(np.sum(action)) for action in actions.values())
        obs = self.seen()
        if self.t == 4:
            self.agents = ["a", "b"]
        ends = {"c": True} if self.t == 4 else {}
        return obs, dict.fromkeys(obs, 1.0), {**ends, "__all__": self.t == 9}, {"__all__": False}, {}

    def seen(self):
        waits = {"b"} if self.t % 2 and self.t < 9 else set()
        return {agent: np.float32([self.t, self.total, ord(agent) - 97]) for agent in self.agents if agent not in waits}


class Linear(TorchRLModule):
    """Mean actions are linear in the observation and in the column "more", if there is one."""

    def setup(self):
        self.weights = torch.nn.Parameter(torch.linspace(-0.1, 0.1, 12).reshape(3, 4))

    def _forward(self, batch, **kwargs):
        logits = batch["obs"] @ self.weights
        if "more" in batch:
            logits = logits + batch["more"].reshape(len(logits), -1)[:, :1]
        return {"action_dist_inputs": logits}


class AddsColumn(ConnectorV2):
    """The sum of an agent's last action, and the env step, as the column "more"."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for part in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=True):
            if part.is_done:
                continue
            last = float(np.sum(part.get_actions(-1))) if len(part) else 0.0
            self.add_n_batch_items(batch, "more", np.float32([[last / 9]]), 1, part)
        return batch


class Halves(SingleAgentObservationPreprocessor):
    def preprocess(self, observation, episode):
        return (observation / 2).astype(np.float32)


class PutsObs(ConnectorV2):
    """Observations in another space, as a column."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        box = gym.spaces.Box(-999, 999, (3,), np.float32)
        if isinstance(input_observation_space, gym.spaces.Dict):
            return gym.spaces.Dict(dict.fromkeys(input_observation_space, box))
        return box

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for part in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=True):
            if not part.is_done:
                self.add_batch_item(batch, "obs", part.get_observations(-1)[::-1].copy(), part)
        return batch


class Louder(ConnectorV2):
    """For the place before GetActions."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for module_id, outputs in batch.items():
            assert isinstance(outputs["action_dist_inputs"], torch.Tensor) and module_id in rl_module
            outputs["action_dist_inputs"] = 3 * outputs["action_dist_inputs"]
        return batch


class Sticky(ConnectorV2):
    """Repeats an agent's last action in every third step of the episode."""

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        parts = {(e.id_, agent): part for e in episodes for agent, part in e.agent_episodes.items()}
        steps = {e.id_: e.env_t for e in episodes}

        def repeat(action, episode_id, agent_id, module_id):
            part = parts[episode_id, agent_id]
            return part.get_actions(-1) if steps[episode_id] % 3 == 2 and len(part) else action

        self.foreach_batch_item_change_in_place(batch, "actions", repeat)
        return batch


class Shifts(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        self.foreach_batch_item_change_in_place(batch, "actions_for_env", lambda action, *who: action - 1)
        return batch


def of_rllib(to_module, places):
    """With the pieces in the same places."""
    early, middle, late = places
    config = PPOConfig().environment(Drifting).env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    config.env_runners(
        env_to_module_connector=lambda *args: [piece() for piece in to_module],
        module_to_env_connector=lambda *args: [piece() for piece in middle],
    )
    config.multi_agent(policies={"p"}, policy_mapping_fn=lambda *args, **kwargs: "p")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Linear)).debugging(seed=1)
    runner = MultiAgentEnvRunner(config=config)
    for piece in early:
        runner._module_to_env.insert_before(GetActions, piece())
    for piece in reversed(late):
        runner._module_to_env.insert_after(NormalizeAndClipActions, piece())
    return runner


def of_ours(to_module, places):
    early, middle, late = ([piece() for piece in pieces] for pieces in places)
    order = middle
    if early or late:
        order = [*early, connectors.GetActions, *middle, connectors.NormalizeAndClipActions, *late]
    spec = RLModuleSpec(
        module_class=Linear, observation_space=gym.spaces.Box(-999, 999, (3,), np.float32), action_space=BOX
    )
    config = fastmarl.EnvRunnerConfig(
        env=Drifting,
        num_envs_per_env_runner=2,
        policies={"p": spec.build()},
        env_to_module_connector=[piece() for piece in to_module],
        module_to_env_connector=order,
        seed=1,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def actions_of(runner):
    """By episode in order of their ends, and agent: its actions, and the total that it saw."""
    return [
        {
            agent: (part.get_actions().tolist(), part.get_observations()[:, 1].tolist())
            for agent, part in sorted(episode.agent_episodes.items())
        }
        for episode in runner.sample(num_episodes=4, explore=False)
    ]


@pytest.mark.parametrize(
    ("to_module", "places"),
    [
        ([], NONE),
        ([AddsColumn], NONE),
        ([PutsObs], NONE),
        ([AddsColumn, PutsObs], NONE),
        ([], ([Louder], [], [])),
        ([], ([Louder, Louder], [Sticky], [])),
        ([], ([], [Sticky], [])),
        ([], ([], [], [Shifts])),
        ([AddsColumn], ([Louder], [Sticky, Sticky], [Shifts, Shifts])),
    ],
)
def test_the_same_actions_come(to_module, places):
    theirs, ours = of_rllib(to_module, places), of_ours(to_module, places)
    want, got = actions_of(theirs), actions_of(ours)
    theirs.stop()
    ours.stop()
    assert [each.keys() for each in got] == [each.keys() for each in want]
    for one, other in zip(want, got, strict=True):
        for agent in one:
            for mine, its in zip(other[agent], one[agent], strict=True):
                np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)


def test_values_that_a_piece_writes_into_episodes_are_only_acted_upon():
    """RLlib's runner records it, too."""
    theirs, ours = of_rllib([Halves], NONE), of_ours([Halves], NONE)
    (want, *_), (got, *_) = actions_of(theirs), actions_of(ours)
    np.testing.assert_allclose(got["a"][0], want["a"][0], rtol=1e-5)
    np.testing.assert_allclose(got["a"][1], 2 * np.array(want["a"][1]), rtol=1e-5)


class Impossible:
    """A piece needs no base class."""

    def __init__(self, made):
        self.made = made

    def __call__(self, *, rl_module, batch, episodes, explore, shared_data, metrics):
        return self.made


@pytest.mark.parametrize("option", ["env_to_module_connector", "module_to_env_connector"])
@pytest.mark.parametrize(
    ("made", "problem"), [(None, r"expected __call__\(\) to return a batch"), ({"p": 1, "x": 1}, "expected")]
)
def test_impossible_batches(option, made, problem):
    options = {option: Impossible(made), "policies": ["p"], "env": Drifting}
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options))
    with pytest.raises(ConnectorError, match=f"module 'p', connector Impossible: {problem}"):
        runner.sample(num_timesteps=3)


def test_a_policy_has_no_episodes_for_a_piece():
    config = fastmarl.EnvRunnerConfig(env=Drifting, env_to_module_connector=AddsColumn())
    policy = fastmarl.Policy.from_runner(fastmarl.MultiAgentEnvRunner(config))
    with pytest.raises(fastmarl.errors.ConfigError, match="only while a runner acts"):
        policy.act(np.zeros(3, np.float32), agent_id="a")
