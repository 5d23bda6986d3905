"""Ctrl-C at lines of the package that run in the old API stack's drop-in: what is returned is what the envs have sent.

By default some lines are tried; `make test-interrupts` tries all of them, and a second one after every third.
"""

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy
from support.interrupts import Interruption, in_own_thread, interrupt_lines, lines_of
from support.numbered_env import JOINS, NumberedEnv, reward_of

from fastmarl.rllib import RolloutWorker

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own
N_LINES = 3


class PaysFromTheFirstAction(NumberedEnv):
    """Gives rewards only from an agent's first action on; RLlib's old API stack drops earlier ones."""

    def step(self, actions):
        obs, rewards, *others = super().step(actions)
        return obs, {agent: reward for agent, reward in rewards.items() if JOINS[agent] < self.t}, *others


def make_worker(batch_mode):
    config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.environment(PaysFromTheFirstAction, disable_env_checking=True).framework("torch").debugging(seed=1)
    config.multi_agent(policies={"p", "q"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: "pq"[agent_id == "b"])
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=3, rollout_fragment_length=6, batch_mode=batch_mode)
    config.training(model={"fcnet_hiddens": [8]})
    return RolloutWorker(env_creator=PaysFromTheFirstAction, default_policy_class=PPOTorchPolicy, config=config)


def check(batch, seen):
    """Check that each row has the data that an env sent and got; `seen`: rows of earlier batches.

    Rows of "c", which ends early, occur again in later batches of its episode, as in RLlib.
    """
    envs = {env.number: env for env in NumberedEnv.made}
    for columns in batch.policy_batches.values():
        assert all(len(column) == len(columns) for column in columns.values())
        names = ("obs", "new_obs", "actions", "rewards", "t")
        for obs, after, action, reward, t in zip(*(columns[name].tolist() for name in names), strict=True):
            number, reset, at, agent = map(int, obs)
            key = number, reset, at, chr(agent)
            assert after == [number, reset, at + 1, agent]
            assert action == envs[number].received[key[1:]]
            assert reward == reward_of(reset, at + 1, chr(agent))
            assert t == at
            assert key not in seen or chr(agent) == "c"
            seen.add(key)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("twice", [False, True], ids=("once", "twice"))
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@in_own_thread
def test_batches_after_an_interrupt_are_right(batch_mode, twice, rng):
    """An interrupt within the sampler's generator ends it, as it does RLlib's; after any other, it goes on."""

    def try_line(interruption: Interruption) -> None:
        worker, seen = make_worker(batch_mode), set()
        check(worker.sample(), seen)
        batch = interruption.run(worker.sample)
        if batch is not None:
            check(batch, seen)
        for _ in range(3):
            if worker.sampler._env_runner.gi_frame is None:  # it has ended
                with pytest.raises(StopIteration):
                    worker.sample()
            else:
                check(worker.sample(), seen)
                assert worker.is_accelerated
        worker.stop()

    worker = make_worker(batch_mode)
    worker.sample()
    lines = lines_of(worker.sample)
    worker.stop()
    interrupt_lines(try_line, lines, rng, n_lines=N_LINES, twice=twice)
