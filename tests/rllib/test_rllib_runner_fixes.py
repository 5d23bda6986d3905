"""Defects of RLlib's runner that ours does not have, by docs/differences.md; corrections on request included."""

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.tune.registry import register_env
from rllib.differential.known import CorrectedLoop
from support.rllib_walk import RLlibClock

from fastmarl.errors import FinishedAgentError
from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

OBS = gym.spaces.Box(-100, 100, (2,), np.float32)


class Counter(MultiAgentEnv):
    """Agents observe (steps since reset, seed of the reset); all end after `length` steps.

    Args:
        config: "length"; "empty_reset": no agent is observed at first; "fails": (env, its step) that raises;
            "failing_resets": how many resets of the first env raise; "start" of the action spaces; "common": infos.
    """

    made = 0

    def __init__(self, config):
        super().__init__()
        self.rules = config
        self.rules.set_defaults({"length": 5, "start": 0})
        self.agents = self.possible_agents = self.rules.get("agents", ["a", "b", "c"])
        self.observation_spaces = dict.fromkeys(self.agents, OBS)
        action_space = gym.spaces.Discrete(3, start=self.rules["start"])
        self.action_spaces = dict.fromkeys(self.agents, action_space)
        self.number, Counter.made = Counter.made, Counter.made + 1
        self.seeds, self.received, self.resets, self.steps = [], [], 0, 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        if self.number == 0 and self.resets <= self.rules.get("failing_resets", 0):
            raise ValueError
        self.seeds.append(seed)
        self.t = 0
        return ({} if self.rules.get("empty_reset") else self._observations()), self._infos()

    def step(self, actions):
        self.received.append(actions)
        self.steps += 1
        if self.rules.get("fails") == (self.number, self.steps):
            raise ValueError("this env fails")
        self.t += 1
        rewards = dict.fromkeys(actions, 1.0)
        return self._observations(), rewards, {"__all__": self.t >= self.rules["length"]}, {}, self._infos()

    def _observations(self):
        return {agent: np.array([self.t, self.number], np.float32) for agent in self.agents}

    def _infos(self):
        return {"__common__": {"t": self.t}} if self.rules.get("common") else {}


def make_runner(fixes=(), num_envs=2, seed=3, worker_index=1, **rules):
    Counter.made = 0
    config = (
        PPOConfig()
        .environment(Counter, env_config=rules, disable_env_checking=True)
        .multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .env_runners(num_envs_per_env_runner=num_envs)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8]))
        .fault_tolerance(restart_failed_sub_environments=True)
        .debugging(seed=seed)
    )
    return MultiAgentEnvRunner.options(fixes=fixes)(config=config, worker_index=worker_index)


def envs_of(runner):
    return [env.unwrapped for env in runner.env.envs]


def test_03_only_the_failed_envs_episode_is_dropped():
    runner = make_runner(num_envs=3, length=50, fails=(1, 4))
    episodes = runner.sample(num_timesteps=30)
    assert runner.is_accelerated
    assert sum(map(len, episodes)) >= 30
    first_steps = [episode.agent_episodes["a"].get_observations(0)[0] for episode in episodes]
    lengths = dict(
        zip([episode.agent_episodes["a"].get_observations(0)[1] for episode in episodes], episodes, strict=True)
    )
    assert first_steps == [0, 0, 0]
    assert len(lengths[0.0]) > len(lengths[3.0])  # env 3 took the place of env 1
    assert runner.get_metrics()["num_env_step_failures"].peek() == 1


def test_49_every_env_has_a_context_of_its_own():
    runner = make_runner(num_envs=3, length=50, fails=(1, 4), mutable={"list": []})
    contexts = [env.rules for env in envs_of(runner)]
    assert [context.vector_index for context in contexts] == [0, 1, 2]
    assert [context.worker_index for context in contexts] == [1, 1, 1]
    assert runner.config.env is Counter
    runner.sample(num_timesteps=30)  # env 1 fails and is created again
    assert [env.rules.vector_index for env in envs_of(runner)] == [0, 1, 2]
    assert envs_of(runner)[1].number == 3
    runner.make_env()
    assert [env.rules.vector_index for env in envs_of(runner)] == [0, 1, 2]


def test_49_registered_names_too():
    register_env("counter_49", lambda context: Counter(context))
    runner = make_runner(num_envs=2)
    runner.config.env = "counter_49"
    runner.make_env()
    assert [env.rules.vector_index for env in envs_of(runner)] == [0, 1]
    assert runner.config.env == "counter_49"


def test_23_and_51_resets_are_tried_ten_times():
    runner = make_runner(num_envs=1)
    runner.env.envs[0].unwrapped.reset = None  # calling it raises; a new env works
    assert runner.sample(num_timesteps=3)

    class Broken(Counter):
        def reset(self, *, seed=None, options=None):
            raise KeyError("never")

    broken = make_runner(num_envs=1)
    broken.config.environment(Broken)
    broken.make_env()
    with pytest.raises(KeyError, match="never"):
        broken.sample(num_timesteps=3)


def test_10_an_empty_reset_begins_an_episode():
    runner = make_runner(num_envs=1, empty_reset=True)
    (episode,) = runner.sample(num_episodes=1)
    assert len(episode) == 5
    assert all(len(part) == 4 for part in episode.agent_episodes.values())
    assert runner.get_metrics()["num_env_steps_sampled"].peek() == 5


def test_19_and_20_counters():
    runner = make_runner(num_envs=3)
    assert len(runner.sample(num_episodes=1)) == 1
    assert runner.get_metrics()["num_episodes"].peek() == 1
    metrics = runner.get_metrics()
    assert metrics["num_episodes"].peek() == 0
    assert all(stats.peek() == 0 for stats in metrics["num_agent_steps_sampled"].values())


def test_30_and_62_a_call_of_no_steps_returns_nothing_and_loses_nothing():
    runner = make_runner(length=50)
    assert runner.sample(num_timesteps=0) == []
    first = runner.sample(num_timesteps=8)
    assert runner.sample(num_timesteps=0) == []
    second = runner.sample(num_timesteps=8)
    assert runner.is_accelerated
    assert [chunk.id_ for chunk in second] == [chunk.id_ for chunk in first]
    for chunk in second:
        for part in chunk.agent_episodes.values():
            assert part.get_observations()[:, 0].tolist() == [4, 5, 6, 7, 8]


def test_26_and_41_no_returned_episode_is_kept():
    import gc
    import weakref

    runner = make_runner(length=10**6)
    columns = []
    for _ in range(3):
        for episode in runner.sample(num_timesteps=10):
            columns.append(weakref.ref(episode.agent_episodes["a"].rewards.data))
    del episode
    gc.collect()
    assert not any(column() is not None for column in columns)


def test_27_timers_of_connectors_stay_in_their_place():
    runner = make_runner()
    runner.sample(num_timesteps=4)
    assert not {"timers", "connector_pipeline_timer"} & set(runner.get_metrics())


def test_34_state_without_a_module():
    runner = make_runner()
    runner.module = None
    assert "rl_module" not in runner.get_state()


def test_04_seeds_are_distinct():
    seeds = [
        env.seeds[0] for worker in (1, 2, 3) for env in _after_a_reset(make_runner({"04"}, 4, worker_index=worker))
    ]
    assert len(set(seeds)) == 12
    overlapping = [env.seeds[0] for worker in (1, 2) for env in _after_a_reset(make_runner((), 4, worker_index=worker))]
    assert len(set(overlapping)) == 5


def _after_a_reset(runner):
    runner.sample(num_timesteps=1)
    return envs_of(runner)


@pytest.mark.parametrize(("fixes", "expected"), [((), 2), (("05",), 1)])
def test_05_only_the_first_reset_is_seeded(fixes, expected):
    runner = make_runner(fixes, num_envs=1)
    runner.sample(num_episodes=1)
    runner.sample(num_episodes=1)
    assert sum(seed is not None for seed in envs_of(runner)[0].seeds) == expected


def test_06_unseeded_envs_differ():
    seeds = [env.seeds[0] for env in _after_a_reset(make_runner({"06"}, num_envs=3, seed=None))]
    assert None not in seeds
    assert len(set(seeds)) == 3


def test_07_rows_are_in_the_order_of_the_observations():
    runner = make_runner({"07"}, num_envs=1, length=100)
    (episode,) = runner.sample(num_timesteps=3)
    assert list(episode.agent_episodes) == ["a", "b", "c"]
    assert list(envs_of(runner)[0].received[0]) == ["a", "b", "c"]


def test_18_steps_are_actions():
    counted = {}
    for fixes in ((), ("18",)):
        runner = make_runner(fixes, num_envs=1, empty_reset=True)
        runner.sample(num_episodes=1)
        counted[fixes] = runner.get_metrics()["num_agent_steps_sampled"]["a"].peek()
    assert counted == {(): 5, ("18",): 4}  # the first of five observations follows upon no action


@pytest.mark.parametrize(("fixes", "n_actions"), [((), 9), (("18",), 12)])
def test_18_agent_steps_to_sample_are_actions(fixes, n_actions):
    runner = make_runner(fixes, num_envs=1, empty_reset=True)
    runner.config._is_frozen = False
    runner.config.multi_agent(count_steps_by="agent_steps")
    runner.sample(num_timesteps=12)
    assert sum(map(len, envs_of(runner)[0].received)) == n_actions  # the first observations follow upon no action


def test_21_common_infos_are_kept():
    runner = make_runner({"21"}, num_envs=1, common=True)
    (episode,) = runner.sample(num_episodes=1)
    assert episode.custom_data["__common__"] == {t: {"t": t} for t in range(6)}


def test_28_discrete_actions_begin_with_their_start():
    for fixes, expected in (((), {0, 1, 2}), (("28",), {7, 8, 9})):
        runner = make_runner(fixes, num_envs=1, start=7, length=200)
        (episode,) = runner.sample(num_timesteps=100)
        assert {int(action) for actions in envs_of(runner)[0].received for action in actions.values()} == expected
        assert set(episode.agent_episodes["a"].get_actions().tolist()) == {0, 1, 2}


def test_46_ids_of_equal_text_have_metrics_of_their_own():
    for fixes, expected in (((), {"1": 10, "b": 5}), (("46",), {"1": 5, "1 (int)": 5, "b": 5})):
        runner = make_runner(fixes, num_envs=1, agents=[1, "1", "b"])
        runner.sample(num_episodes=1)
        assert runner.is_accelerated
        metrics = runner.get_metrics()
        assert metrics["agent_steps"].keys() == expected.keys()
        assert {name: stats.peek() for name, stats in metrics["num_agent_steps_sampled"].items()} == expected


def test_50_random_actions_depend_on_the_seed():
    taken = [make_runner({"50"}).sample(num_timesteps=20, random_actions=True)[0] for _ in range(2)]
    first, second = (episode.agent_episodes["b"].get_actions().tolist() for episode in taken)
    assert first == second


class Unequal(Counter):
    """Episodes of the last env take 20 steps, those of the others 2."""

    def __init__(self, config):
        super().__init__(config)
        self.rules["length"] = 20 if config.vector_index == 2 else 2


def make_unequal_runner(fixes):
    config = make_runner(fixes).config.copy(copy_frozen=False)
    config.environment(Unequal)
    config.env_runners(num_envs_per_env_runner=3, batch_mode="complete_episodes")
    return MultiAgentEnvRunner.options(fixes=fixes)(config=config, worker_index=1)


@pytest.mark.parametrize(("fixes", "lengths"), [((), [2, 2, 2]), (("59",), [2, 2, 20])])
def test_59_complete_episodes_are_not_chosen_by_their_length(fixes, lengths):
    runner = make_unequal_runner(fixes)
    for _ in range(2):
        assert [len(episode) for episode in runner.sample()] == lengths
    assert runner.is_accelerated


@pytest.mark.parametrize(("n", "lengths"), [(0, []), (1, [2]), (2, [2, 2]), (5, [2, 2, 2, 2, 20])])
def test_59_the_first_that_begin(n, lengths):
    runner = make_unequal_runner(("59",))
    assert [len(episode) for episode in runner.sample(num_episodes=n)] == lengths
    stepped = [len(env.received) for env in envs_of(runner)]
    assert sum(stepped) == sum(lengths), "who has delivered is not stepped on"
    assert runner.get_metrics()["num_env_steps_sampled"].peek() == sum(lengths) if n else True
    assert sum(map(len, runner.sample(num_timesteps=9))) >= 9  # and all envs go on


class Generous(Counter):
    """Pays an agent that it never shows, and one that has ended."""

    def step(self, actions):
        observations, rewards, terminateds, truncateds, infos = super().step(actions)
        if self.t == 2:
            terminateds["b"] = True
        if self.t > 2:
            observations.pop("b")
            rewards["b"] = 0.0
        return observations, {**rewards, "d": 0.25}, terminateds, truncateds, infos


def test_60_rewards_that_are_lost_are_reported():
    runner = make_runner(num_envs=1)
    runner.config._is_frozen = False
    runner.config.environment(Generous)
    runner.make_env()
    runner.sample(num_episodes=2)
    assert runner.get_metrics()["unattributed_reward"].peek() == 2 * 5 * 0.25
    assert runner.get_metrics()["unattributed_reward"].peek() == 0


def test_60_there_is_no_such_metric_if_nothing_is_lost():
    runner = make_runner()
    runner.sample(num_episodes=2)
    assert "unattributed_reward" not in runner.get_metrics()


def test_errors_name_no_options_of_the_standalone_runner():
    class Undead(Counter):
        def step(self, actions):
            result = super().step({agent: action for agent, action in actions.items() if agent != "b"})
            result[1]["b"] = 0.0
            result[2]["b"] = self.t == 2
            return result

    runner = make_runner(num_envs=1)
    runner.config._is_frozen = False
    runner.config.environment(Undead)
    runner.make_env()
    with pytest.raises(FinishedAgentError, match="RLlib's episodes can't store") as caught:
        runner.sample(num_timesteps=9)
    assert not {"respawn", "late_rewards"} & set(str(caught.value).replace("=", " ").split())


def test_an_error_keeps_finished_episodes():
    class Rude(Counter):
        def step(self, actions):
            result = super().step(actions)
            if self.steps == 8:
                result[0]["a"] = "no observation"
                result[1]["stranger"] = object()
            return result

    runner = make_runner(num_envs=1)
    runner.config.environment(Rude)
    runner.make_env()
    with pytest.raises(Exception, match=r".*"):
        runner.sample(num_timesteps=20)
    assert [len(episode) for episode in runner.sample(num_timesteps=3)] == [5, 3]


def test_the_fast_sampler_draws_from_the_same_distribution():
    Counter.made = 0
    runner = make_runner(num_envs=8, length=10**6)
    fast_class = type(runner).options(sampler="fast")
    fast = fast_class(config=runner.config, worker_index=1)
    counts = {}
    for name, one in (("exact", runner), ("fast", fast)):
        fast.module.set_state(runner.module.get_state())
        episodes = one.sample(num_timesteps=8 * 400)
        parts = [part for episode in episodes for part in episode.agent_episodes.values()]
        actions = np.concatenate([part.get_actions() for part in parts])
        logits = np.concatenate([part.get_extra_model_outputs("action_dist_inputs") for part in parts])
        logp = np.concatenate([part.get_extra_model_outputs("action_logp") for part in parts])
        p = np.exp(logits - np.log(np.exp(logits).sum(1, keepdims=True)))
        np.testing.assert_allclose(logp, np.log(p[np.arange(len(p)), actions]), atol=1e-5)
        counts[name] = np.bincount(actions, minlength=3) / p.sum(0)
    assert fast.is_accelerated
    # 9,600 draws each: a share of about a third has a standard deviation of 1.4 % of itself.
    np.testing.assert_allclose(counts["exact"], 1, atol=0.07)
    np.testing.assert_allclose(counts["fast"], 1, atol=0.07)


class Payer(RLlibClock):
    """Agent "b" is observed in every fourth step, "late" from step 3 to 6; until its end each gets 1 in every step.

    `env_config["flags"]`: agents that have a flag in every step.
    """

    possible_agents = ["a", "b", "late"]  # noqa: RUF012
    length = 12

    def __init__(self, config):
        super().__init__(config)
        self.flags = dict.fromkeys(config["flags"], False)

    def sees(self, t):
        return ["a", *(["b"] if t % 4 == 0 else []), *(["late"] if 3 <= t <= 6 else [])]

    def pays(self, t):
        return dict.fromkeys(self.possible_agents if t <= 6 else ["a", "b"], 1.0)

    def ends(self, t):
        return ["late"] if t == 6 else []

    def step(self, actions):
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        return obs, rewards, self.flags | terminateds, truncateds, infos


@pytest.mark.parametrize("flags", [(), ("a", "b", "late")], ids=str)
@pytest.mark.parametrize("runner_class", [MultiAgentEnvRunner, CorrectedLoop])
def test_58_hanging_rewards_count_once(runner_class, flags):
    config = (
        PPOConfig()
        .environment(Payer, env_config={"flags": flags}, disable_env_checking=True)
        .multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8]))
    )
    runner = runner_class(config=config)
    returns = {}
    for n in (2, 3, 2, 5, 7, 5):
        [chunk] = runner.sample(num_timesteps=n)
        returns[chunk.env_t_started, chunk.env_t] = chunk.get_return(), chunk.get_return(True)
    # "b" brings 4 when it is observed, "late" 1 a step from the fourth on; its earlier rewards count until it ends.
    whole = {(0, 7): (14, 17), (7, 12): (13, 13)}
    assert returns == {(0, 2): (2, 6), (2, 5): (9, 11), (5, 7): (3, 6), **whole}
