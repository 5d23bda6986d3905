"""Ctrl-C at lines of the package that run in a legacy worker's `sample()`: later batches are what the envs have sent.

By default some lines are tried; `make test-interrupts` tries all of them, and a second one after every third.
"""

from itertools import product

import pytest
from support.interrupts import Interruption, in_own_thread, interrupt_lines, lines_of
from support.numbered import ENDS, JOINS, LENGTHS, Numbered, reward_of

import fastmarl
from fastmarl.legacy import RolloutWorker, RolloutWorkerConfig

# An interrupt that comes while Python finalises an object is dropped, with this warning.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
N_LINES = 3


def return_of(reset, length):
    """Return the sum of all agents' rewards in a whole episode."""
    last = {agent: length if ENDS[agent] is None else ENDS[agent] for agent in JOINS}
    return sum(reward_of(reset, t, agent) for agent in JOINS for t in range(JOINS[agent] + 1, last[agent] + 1))


WHOLE = [(length, return_of(reset, length)) for length in LENGTHS for reset in range(100)]


class Telling(Numbered, fastmarl.MultiAgentEnv):
    def __init__(self, context):
        super().__init__(context.vector_index)

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {agent: reward for agent, reward in rewards.items() if JOINS[agent] < self.t}, *rest


def make_worker(batch_mode):
    config = RolloutWorkerConfig(
        env=Telling,
        num_envs_per_env_runner=3,
        rollout_fragment_length=6,
        batch_mode=batch_mode,
        policies=["p", "q"],
        policy_mapping_fn=lambda agent_id, episode: "q" if agent_id == "b" else "p",
        model_config={"fcnet_hiddens": [8]},
        seed=1,
    )
    return RolloutWorker(config=config)


class Checked:
    """Takes a worker's batches, and compares their rows with the logs of the envs."""

    def __init__(self, worker):
        self.worker = worker
        self.seen = set()

    def take(self, batch, is_whole):
        envs = {env.number: env for env in self.worker.foreach_env(lambda env: env)}
        numbers = {}
        for columns in batch.policy_batches.values():
            assert all(len(column) == len(columns) for column in columns.values())
            names = ("obs", "new_obs", "actions", "rewards", "t", "eps_id")
            rows = zip(*(columns[name].tolist() for name in names), strict=True)
            for obs, after, action, reward, t, eps_id in rows:
                env, reset, at, agent = map(int, obs)
                key = env, reset, at, chr(agent)
                assert key not in self.seen, f"{key} is in two batches"
                self.seen.add(key)
                assert after == [env, reset, at + 1, agent] and t == at
                assert action == envs[env].received[reset, at, chr(agent)]
                assert reward == reward_of(reset, at + 1, chr(agent))
                assert numbers.setdefault((env, reset), eps_id) == eps_id
        if is_whole:
            for env, reset in numbers:
                length = LENGTHS[(env + reset) % len(LENGTHS)]
                assert {(env, reset, at, "a") for at in range(length)} <= self.seen


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True], ids=("once", "twice"))
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@in_own_thread
def test_the_worker_samples_on(batch_mode, twice, rng):
    is_whole = batch_mode == "complete_episodes"

    def try_line(interruption: Interruption) -> None:
        with make_worker(batch_mode) as worker:
            checked = Checked(worker)
            checked.take(worker.sample(), is_whole)
            batch = interruption.run(worker.sample)
            if batch is not None:
                checked.take(batch, is_whole)
            for _ in range(3):
                batch = worker.sample()
                assert batch.count >= 18
                checked.take(batch, is_whole)
            worker.learn_on_batch(batch)
            for metrics in worker.get_metrics():
                assert (metrics.episode_length, metrics.episode_reward) in WHOLE

    with make_worker(batch_mode) as worker:
        worker.sample()
        lines = lines_of(worker.sample)
    interrupt_lines(try_line, lines, rng, n_lines=N_LINES, twice=twice)


BETWEEN = ("legacy/sampling/", "legacy/rollout_worker.py")  # the runner and the caller
HANDED_OVER = (
    "self.unreturned = self.unreturned[1:]",
    "return batch",
    "self.output_writer.write(batch.to_rllib() if is_of_rllib(type(self.output_writer)) else batch)",
    "if config.compress_observations:",
    "if config.fake_sampler:",
)


@pytest.mark.slow
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@in_own_thread
def test_nothing_is_lost_between_the_runner_and_the_caller(batch_mode, rng):
    """All that the runner's `sample()` returned arrives; chunks of whole episodes are joined on the way."""

    def try_line(interruption: Interruption) -> None:
        with make_worker(batch_mode) as worker:
            checked = Checked(worker)
            checked.take(worker.sample(), is_whole=False)
            returned = interruption.run(worker.sample)
            for batch in [*([] if returned is None else [returned]), worker.sample(), worker.sample()]:
                checked.take(batch, is_whole=False)
            assert_no_gaps(checked.seen)
            assert len(worker.get_metrics()) == n_ended(checked.seen)

    with make_worker(batch_mode) as worker:
        worker.sample()
        lines = [line for line in lines_of(worker.sample) if any(part in line.file for part in BETWEEN)]
    chosen = [line for line in lines if line.text not in HANDED_OVER]
    assert len(chosen) > 80
    interrupt_lines(try_line, chosen, rng, n_lines=N_LINES)


def assert_no_gaps(seen):
    """Each env's episodes follow each other, and only the last may go on."""
    for env, agent in product(range(3), JOINS):
        steps = sorted((reset, at) for e, reset, at, who in seen if (e, who) == (env, agent))
        last = steps[-1][0]
        want = [(reset, at) for reset in range(last + 1) for at in range(JOINS[agent], end_of(env, reset, agent))]
        assert steps == want[: len(steps)] and (last, JOINS[agent]) in steps, f"env {env}, agent {agent}: {steps}"


def end_of(env, reset, agent):
    return LENGTHS[(reset + env) % len(LENGTHS)] if ENDS[agent] is None else ENDS[agent]


def n_ended(seen):
    return sum(at == end_of(env, reset, "a") - 1 for env, reset, at, agent in seen if agent == "a")
