"""Batches that others made, and bundled ones, not unbatched: what is recorded is what they said, copy by copy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support.exhaustive import further
from support.optional import params
from support.sampled import Sampled
from support.scripted import Says
from support.teams import TEAMS

import fastmarl
from fastmarl.core.envs.gymnasium_vector import VectorGymnasiumEnv
from fastmarl.core.envs.vmas import VmasEnv
from fastmarl.core.vector.seeds import ResetSeeds
from fastmarl.errors import EnvCheckError
from fastmarl.testing import check_env

NUM_ENVS = 4
DISABLED = {"autoreset_mode": AutoresetMode.DISABLED}


class SampledActions(Sampled):
    """With the actions as the envs got them."""

    def __init__(self, env, calls=(1, 2, 7, 30, 30), **options):
        super().__init__(env, NUM_ENVS, calls, **options)

    def for_env(self, agent, actions):
        """Recorded actions [E, ...] as the env got them."""
        space = self.adapter.action_spaces[agent]
        if isinstance(space, gym.spaces.Box):
            return np.clip(space.low + (actions + 1.0) * (space.high - space.low) / 2.0, space.low, space.high)
        return actions


@pytest.mark.needs("vmas")
@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        *further([("balance", {"max_steps": 9})]),
        ("simple_tag", {"max_steps": 5, "dict_spaces": True}),
        ("transport", {"max_steps": 7, "continuous_actions": False}),
        ("balance", {"continuous_actions": False, "multidiscrete_actions": True}),
    ],
)
def test_vmas_episodes_match_a_replay(scenario, options):
    """Another batch with the same seed, given the recorded actions, says the same."""
    import vmas

    spaces = {"adversary": "a", "agent": "b"} if scenario == "simple_tag" else {"agent": "a"}
    sampled = SampledActions(
        f"vmas.{scenario}",
        env_config=options,
        policies=sorted(set(spaces.values())),
        policy_mapping_fn=lambda agent, episode: spaces[agent.split("_")[0]],
    )
    assert isinstance(sampled.adapter, VmasEnv)
    worlds = vmas.make_env(scenario, NUM_ENVS, terminated_truncated=True, **options)
    keys = {agent.name: agent.name if worlds.dict_spaces else i for i, agent in enumerate(worlds.agents)}
    said = worlds.reset(seed=ResetSeeds(sampled.runner._resources.streams, NUM_ENVS).take(0))
    n_ended = 0
    for tick in range(sampled.steps):
        now = [sampled.at(env_index, tick) for env_index in range(NUM_ENVS)]
        joint_action = []
        for agent, key in keys.items():
            parts = [episode.agent_episodes[agent] for episode, _ in now]
            recorded = [part.get_observations(t) for part, (_, t) in zip(parts, now, strict=True)]
            np.testing.assert_array_equal(recorded, said[key].numpy())
            actions = np.array([part.get_actions(t) for part, (_, t) in zip(parts, now, strict=True)])
            joint_action.append(torch.from_numpy(sampled.for_env(agent, actions).reshape(NUM_ENVS, -1)))
        said, rewards, *ends, _ = worlds.step(joint_action)
        over = torch.nonzero(ends[0] | ends[1]).flatten().tolist()
        for agent, key in keys.items():
            for env_index, (episode, t) in enumerate(now):
                part = episode.agent_episodes[agent]
                assert part.get_rewards(t) == rewards[key][env_index].item()
                np.testing.assert_array_equal(part.get_observations(t + 1), said[key][env_index].numpy())
                if env_index in over:
                    assert (len(part), episode.is_done) == (t + 1, True)
                    assert [part.is_terminated, part.is_truncated] == [end[env_index].item() for end in ends]
        n_ended += len(over)
        if len(over) == NUM_ENVS:
            said = worlds.reset()
        elif over:
            for env_index in over:
                worlds.reset_at(env_index, return_observations=False)
            (said,) = worlds.get_from_scenario(True, False, False, False)
    assert n_ended


BATCHES = {
    "vmas": ("vmas.balance", {"max_steps": 20}),
    "vmas, discrete": ("vmas.simple_tag", {"max_steps": 20, "continuous_actions": False, "dict_spaces": True}),
    "gymnasium, DISABLED": (lambda config: cart_poles(config), {}),
    "gymnasium, Tuple": (lambda config: SyncVectorEnv([Pair] * config.num_envs, **DISABLED), {}),
}
KNOWN_NOTES = {"vmas": {"neighbours"}, "vmas, discrete": {"neighbours"}}  # one generator for all worlds


@pytest.mark.parametrize("kind", params(BATCHES, lambda kind: "vmas" if "vmas" in kind else None))
def test_check_env_finds_nothing(kind):
    env, env_config = BATCHES[kind]
    report = check_env(env, env_config, steps=60)
    assert report.ok, str(report)
    assert {note.kind for note in report.notes} == KNOWN_NOTES.get(kind, set()), str(report)
    assert report.episodes


@pytest.mark.needs("vmas")
def test_vmas_infos_are_recorded_if_asked_for():
    import vmas

    def make(config):
        return VmasEnv(vmas.make_env("balance", NUM_ENVS, terminated_truncated=True, max_steps=5), infos=True)

    for episode in SampledActions(make, [12]).by_env[0]:
        infos = episode.agent_episodes["agent_1"].get_infos()
        assert infos[0] == {} and all(set(info) == {"pos_rew", "ground_rew"} for info in infos[1:])
        rewards = [info["pos_rew"] + info["ground_rew"] for info in infos[1:]]
        np.testing.assert_allclose(episode.agent_episodes["agent_1"].get_rewards(), rewards, rtol=1e-5)


@pytest.mark.needs("vmas")
def test_a_vmas_world_must_separate_terminated_from_truncated():
    import vmas

    with pytest.raises(EnvCheckError, match="terminated_truncated=True"):
        VmasEnv(vmas.make_env("balance", 2))


def cart_poles(config):
    return gym.make_vec("CartPole-v1", config.num_envs, vectorization_mode="sync", vector_kwargs=DISABLED)


def test_episodes_of_a_vector_env_are_those_of_its_envs():
    sampled = SampledActions(cart_poles, [1, 2, 7, 60, 60])
    assert isinstance(sampled.adapter, VectorGymnasiumEnv)
    for env_index, episodes in enumerate(sampled.by_env):
        env = gym.make("CartPole-v1")
        assert len(episodes) > 1
        seeds = ResetSeeds(sampled.runner._resources.streams, NUM_ENVS)
        for episode in episodes:
            observation, _ = env.reset(seed=seeds.take(env_index))
            part = episode.agent_episodes[0]
            for t in range(len(part)):
                np.testing.assert_array_equal(part.get_observations(t), observation)
                observation, reward, terminated, truncated, _ = env.step(int(part.get_actions(t)))
                assert part.get_rewards(t) == reward
            np.testing.assert_array_equal(part.get_observations(-1), observation)
            assert (part.is_terminated, part.is_truncated) == (terminated, truncated)


def test_a_vector_env_may_begin_episodes_by_its_next_step():
    """Like Gymnasium's own compiled ones: no agent acts in that step."""

    def make(config):
        return gym.make_vec("CartPole-v1", config.num_envs, vectorization_mode="vector_entry_point")

    sampled = SampledActions(make, [1, 2, 7, 60, 60])
    for first, *others in sampled.by_env:
        assert others and first.agent_episodes[0].env_ts()[0] == 0
        for episode in others[:-1]:
            part = episode.agent_episodes[0]
            assert part.env_ts().tolist() == list(range(1, len(episode) + 1))
            assert (abs(part.get_observations(0)) <= 0.05).all(), "CartPole begins near the middle"
            last = part.get_observations(-1)
            assert abs(last[0]) > 2.4 or abs(last[2]) > 0.2
            assert part.get_rewards().tolist() == [1.0] * len(part)


def test_dropping_episodes_of_envs_that_cannot_be_reset_is_an_error():
    def make(config):
        return gym.make_vec("CartPole-v1", config.num_envs, vectorization_mode="vector_entry_point")

    config = fastmarl.EnvRunnerConfig(env=make, num_envs_per_env_runner=NUM_ENVS, seed=0)
    runner = fastmarl.MultiAgentEnvRunner(config)
    while not any(runner.env.envs[0]._ended):
        runner.sample(num_timesteps=NUM_ENVS)
    with pytest.raises(EnvCheckError, match=r"AutoresetMode.DISABLED, or do not drop"):
        runner.sample(num_timesteps=NUM_ENVS, force_reset=True)


class Pair(gym.Env):
    """Two agents in Tuple spaces, a Dict and a Box; each receives the sum of both actions as its reward."""

    observation_space = gym.spaces.Tuple(
        [gym.spaces.Dict({"t": gym.spaces.Discrete(99), "name": gym.spaces.Text(9)}), gym.spaces.Box(0, 99, (1,))]
    )
    action_space = gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3])])

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observe(), {"begun": True}

    def step(self, action):
        self.t += 1
        reward = float(action[0] + action[1].sum())
        return self._observe(), reward, self.t == 4, False, {"reward": reward} if self.t == 2 else {}

    def _observe(self):
        return {"t": self.t, "name": f"at{self.t}"}, np.array([self.t], np.float32)


def test_envs_with_tuples_have_several_agents():
    def make(config):
        return SyncVectorEnv([Pair] * config.num_envs, **DISABLED)

    of_a, of_b = zip(Pair.observation_space, Pair.action_space, strict=True)
    policies = {"a": Says(*of_a, actions=2), "b": Says(*of_b, actions=np.array([1, 2]))}
    with pytest.warns(UserWarning, match=r"module 'a' have parts that are not arrays, at \[\['name'\]\]"):
        sampled = SampledActions(
            make, [10], policies=policies, policy_mapping_fn=lambda agent, episode: "ab"[agent], model_config={}
        )
    for episode in sampled.by_env[3][:-1]:
        first, second = episode.agent_episodes[0], episode.agent_episodes[1]
        assert first.get_observations()["t"].tolist() == second.get_observations()[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert first.get_observations()["name"].tolist() == [f"at{t}" for t in range(5)]
        assert first.get_rewards().tolist() == second.get_rewards().tolist() == [5.0] * 4
        assert episode.get_common_infos() == {0: {"begun": True}, 2: {"reward": 5.0}}


def test_vector_envs_that_hide_last_observations_are_refused():
    with pytest.raises(EnvCheckError, match=r"DISABLED or NEXT_STEP, got .*SAME_STEP"):
        VectorGymnasiumEnv(SyncVectorEnv([Pair], autoreset_mode=AutoresetMode.SAME_STEP))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fastmarl.cart_pole", {"num_agents": 3}),
        ("fastmarl.simple_spread", {"continuous_actions": True, "max_cycles": 9}),
        ("fastmarl.simple_tag", {"num_good": 2, "max_cycles": 9}),
        ("fastmarl.gridworld", {"size": 6, "num_hazards": 6, "max_steps": 20}),
        ("fastmarl.lbforaging", {"field_size": (4, 4), "max_food_level": 1, "max_episode_steps": 20}),
        ("fastmarl.rware", {"n_agents": 5, "msg_bits": 1, "max_steps": 20}),
    ],
)
def test_episodes_of_bundled_envs_match_a_replay(name, options):
    """Another batch with the same seeds, given the recorded actions, says the same to those that are still there."""
    sampled = SampledActions(name, env_config=options, **(TEAMS if name == "fastmarl.simple_tag" else {}))
    batch = type(sampled.adapter)(NUM_ENVS, **options)
    out = batch.new_arrays()
    seeds = ResetSeeds(sampled.runner._resources.streams, NUM_ENVS)
    batch.reset(np.arange(NUM_ENVS), out, seeds=[seeds.take(e) for e in range(NUM_ENVS)])
    n_ended_alone = n_over = 0
    for tick in range(sampled.steps):
        acting = [
            (e, group, i, agent, episode.agent_episodes[agent], t)
            for e, (episode, t) in enumerate(sampled.at(e, tick) for e in range(NUM_ENVS))
            for group, agents in batch.groups.items()
            for i, agent in enumerate(agents)
            if t < len(episode.agent_episodes[agent])
        ]
        actions = {}
        for group, agents in batch.groups.items():
            space = batch.action_spaces[agents[0]]
            actions[group] = np.zeros((NUM_ENVS, len(agents), *space.shape), space.dtype)
        for e, group, i, agent, part, t in acting:
            assert_same_observation(part.get_observations(t), out.groups[group].obs, e, i)
            actions[group][e, i] = sampled.for_env(agent, part.get_actions(t))
        out = batch.new_arrays()
        batch.step(actions, out)
        over = out.terminated | out.truncated
        for e, group, i, _, part, t in acting:
            assert part.get_rewards(t) == out.groups[group].rewards[e, i]
            assert_same_observation(part.get_observations(t + 1), out.groups[group].obs, e, i)
            own = out.groups[group].terminated[e, i], out.groups[group].truncated[e, i]
            flags = own if any(own) else (out.terminated[e], out.truncated[e])
            if any(flags):
                assert (len(part), part.is_terminated, part.is_truncated) == (t + 1, *flags)
            n_ended_alone += any(own) and not over[e]
        n_over += over.sum()
        if over.any():
            batch.reset(np.flatnonzero(over), out, seeds=[seeds.take(e) for e in np.flatnonzero(over)])
    assert n_over > NUM_ENVS
    assert bool(n_ended_alone) == (name in ("fastmarl.cart_pole", "fastmarl.gridworld"))


def assert_same_observation(recorded, obs, e, i):
    for key, leaf in recorded.items() if isinstance(recorded, dict) else [(None, recorded)]:
        np.testing.assert_array_equal(leaf, (obs if key is None else obs[key])[e, i])


class Keeps(gym.Env):
    """Keeps the last action, as wrappers such as StickyAction do, and pays whether the next one is another."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.last = np.full(2, np.nan)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        is_other = bool((action != self.last).any())
        self.last = action
        return np.zeros(1, np.float32), float(is_other), False, False, {}


def test_actions_that_envs_keep_do_not_change():
    config = fastmarl.EnvRunnerConfig(
        env=lambda context: SyncVectorEnv([Keeps] * 3), num_envs_per_env_runner=3, seed=0, clip_actions=False
    )
    for chunk in fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=15):
        assert chunk.get_return() == 5
