"""PPO that does not wait for its slowest runner, with real Ray processes."""

import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from fastmarl.errors import ConfigError
from fastmarl.rllib import FirstReadyPPO, MultiAgentEnvRunner
from fastmarl.rllib.first_ready import sample_first_ready

pytestmark = [
    pytest.mark.usefixtures("local_ray", "sent_by_value"),
    pytest.mark.xdist_group("ray"),  # one set of Ray's processes at a time
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's own
]
SHORT, LONG = 5, 12


class Gated(MultiAgentEnv):
    """Episodes of the first runner wait at their third step until a file is there."""

    possible_agents = agents = ("a", "b")

    def __init__(self, config):
        super().__init__()
        self.gate = Path(config["gate"]) if config.worker_index == 1 else None
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, (4,), np.float32))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return dict.fromkeys("ab", np.zeros(4, np.float32)), {}

    def step(self, actions):
        self.t += 1
        deadline = time.monotonic() + 240
        while self.gate is not None and self.t == 3 and not self.gate.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        is_over = self.t == (SHORT if self.gate is None else LONG)
        return dict.fromkeys("ab", np.zeros(4, np.float32)), dict.fromkeys("ab", 1.0), {"__all__": is_over}, {}, {}


def make_config(**env_config):
    return (
        PPOConfig(algo_class=FirstReadyPPO)
        .environment(Gated, env_config=env_config)
        .multi_agent(policies=["p"], policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")
        .env_runners(env_runner_cls=MultiAgentEnvRunner, num_env_runners=2, batch_mode="complete_episodes")
        .training(train_batch_size_per_learner=4 * SHORT, minibatch_size=16, num_epochs=1)
    )


def test_a_slow_runner_is_not_waited_for_and_its_episodes_come_later(tmp_path):
    gate = tmp_path / "open"
    algorithm = make_config(gate=str(gate)).build_algo()
    try:
        for iteration in (1, 2):
            found = algorithm.train()["env_runners"]
            assert found["episode_len_max"] == SHORT
            assert found["num_env_steps_sampled_lifetime"] == 4 * SHORT * iteration
        gate.touch()
        deadline = time.monotonic() + 240
        while algorithm.train()["env_runners"]["episode_len_max"] != LONG:
            assert time.monotonic() < deadline
        (late,) = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: runner.get_state(components=["rl_module"])["rl_module"]["p"],
            local_env_runner=False,
            remote_worker_ids=[1],
        )
        latest = algorithm.get_module("p").get_state(inference_only=True)
        assert all(np.array_equal(late[name], latest[name]) for name in latest)  # it missed several updates
    finally:
        gate.touch()
        algorithm.stop()


class Runners:
    """A stand-in for an EnvRunnerGroup: in each round these runners finish a sample of five steps."""

    def __init__(self, rounds, sampling=()):
        self.rounds, self.sampling, self.sent = list(rounds), set(sampling), []
        self.ids = sorted({runner for each in rounds for runner in each})

    def num_remote_workers(self):
        return len(self.ids)

    num_healthy_remote_workers = num_remote_workers

    def healthy_worker_ids(self):
        return self.ids

    def foreach_env_runner_async(self, function, *, tag, remote_worker_ids):
        (runner,) = remote_worker_ids
        if runner in self.sampling:
            return 0
        self.sampling.add(runner)
        self.sent.append(runner)
        return 1

    def fetch_ready_async_reqs(self, *, tags, timeout_seconds):
        ready = self.rounds.pop(0)
        self.sampling -= set(ready)
        return [(runner, ([f"of {runner}"], {"num_env_steps_sampled": 5}, f"state {runner}")) for runner in ready]


@pytest.mark.parametrize(
    ("rounds", "sampling", "begun", "sent", "states"),
    [
        # 3 began in the last call: the latest weights are in its queue.
        ([[3], [1, 3], [1]], [3], {3: 8}, [1, 3, 1, 3], {1}),
        # 3 began before that: it has missed weights, and gets them at the end of the call.
        ([[3], [1], [1, 1]], [3], {3: 7}, [1, 1], {1, 3}),
        # It samples nevertheless if it is alone.
        ([[3], [3], [3, 3]], [3], {3: 7}, [3, 3], {3}),
        # It samples, too, if the others have died meanwhile.
        ([[3], [3], [3, 3]], [1, 3], {1: 8, 3: 7}, [3, 3], {3}),
        # It waited at the beginning, and has the latest weights.
        ([[3], [3], [3, 1]], [], {3: 2}, [1, 3, 3, 3], {1, 3}),
    ],
)
def test_runners_that_missed_weights_wait_for_them(rounds, sampling, begun, sent, states):
    runners, found = Runners(rounds, sampling), {}  # one that samples and is in no round dies
    episodes, metrics = sample_first_ready(
        worker_set=runners, connector_states=found, begun=begun, number=9, max_env_steps=5 * sum(map(len, rounds))
    )
    assert episodes == [f"of {runner}" for each in rounds for runner in each] and len(metrics) == len(episodes)
    assert sorted(runners.sent) == sorted(sent) and found.keys() == states
    assert all(begun[runner] == 9 for runner in sent)


def test_each_observation_counts_once_in_filters(tmp_path):
    """Runners sample several times between two merges, and go on through others."""
    gate = tmp_path / "open"
    config = make_config(gate=str(gate)).env_runners(
        env_to_module_connector=lambda env, spaces, device: MeanStdFilter(multi_agent=True)
    )
    algorithm = config.build_algo()
    try:
        for iteration in (1, 2, 3, 4):
            found = algorithm.train()["env_runners"]
            steps = found["num_env_steps_sampled_lifetime"]
            n_most = steps + steps // SHORT  # a reset has an observation, too
            if iteration > 2:
                gate.touch()
            (counts,) = {counted(algorithm.env_runner, agent) for agent in "ab"}
            assert n_most * 0.5 < counts <= n_most, iteration
    finally:
        gate.touch()
        algorithm.stop()


def counted(runner, agent):
    state = runner.get_state(components=["env_to_module_connector"])["env_to_module_connector"]
    return state["MeanStdFilter"][agent]["running_stats"][0]["num_pushes"]


def test_without_remote_runners_it_samples_as_rllib_does():
    algorithm = make_config(gate="").env_runners(num_env_runners=0).build_algo()
    assert algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"] == 4 * SHORT
    algorithm.stop()


def test_it_says_so_if_no_runner_is_ready_in_time(tmp_path, caplog):
    config = make_config(gate=str(tmp_path / "open")).env_runners(num_env_runners=1, sample_timeout_s=0.5)
    algorithm = config.build_algo()
    algorithm.train()
    (tmp_path / "open").touch()
    algorithm.stop()
    assert "No EnvRunner has finished sampling within sample_timeout_s=0.5 seconds" in caplog.text


def test_several_requests_at_a_time_are_refused():
    config = make_config(gate="").env_runners(max_requests_in_flight_per_env_runner=2, num_env_runners=0)
    with pytest.raises(ConfigError, match="requires max_requests_in_flight_per_env_runner=1, got 2"):
        config.build_algo()


def test_the_old_stack_is_refused():
    config = make_config(gate="").env_runners(env_runner_cls=None, num_env_runners=0)
    config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    with pytest.raises(ConfigError, match="requires RLlib's new API stack"):
        config.build_algo()
