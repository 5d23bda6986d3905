"""A runner that is saved and re-created between two calls continues its running episodes."""

import random
from dataclasses import replace

import pytest
from support.compare import SideBySide, assert_same_chunk
from support.connected import connected_options
from support.connected_runs import SEEDS, Connected, assert_equals_oracle
from support.differences import assert_same
from support.optional import params
from support.process_runners import contents
from support.random_cases import number_of_cases
from support.replay import make_config
from support.scenario_envs import MIXED_CLOCKS, StepCounter
from support.scripted import Scripted
from support.wandering import KINDS, make_runner
from support.worlds import make_world, world_of

import fastmarl
from fastmarl.errors import FinishedAgentError
from fastmarl.testing import DyingAgentsEnv

CASES = number_of_cases(3, most=100)  # random worlds


class ResumableClocks(Scripted):
    supports_checkpoint = True

    def __init__(self, config):
        super().__init__(MIXED_CLOCKS)

    def get_state(self):
        return {"t": self.t}

    def set_state(self, state):
        self.t = state["t"]


class Remade:
    """The runner of each call but the first is another one, with other envs, that has taken the state of the last."""

    def sample(self, call):
        pairs = super().sample(call)
        config, self.envs = make_config(self.world, **self.options)
        after = fastmarl.MultiAgentEnvRunner(config)
        after.set_state(self.runner.get_state())
        self.runner.stop()
        self.runner = after
        return pairs


class Resumed(Remade, SideBySide):
    def __init__(self, world, **options):
        self.options = options
        super().__init__(world, **options)


def test_agents_that_have_ended_may_not_come_again_after_a_resume():
    class Resumable(DyingAgentsEnv):
        supports_checkpoint = True

        def get_state(self):
            return {"t": self.env_t}

        def set_state(self, state):
            self.env_t = state["t"]

    config = fastmarl.EnvRunnerConfig(env=lambda config: Resumable({"a": [(0, 2), (6, 9)], "b": [(0, 9)]}))
    before, after = fastmarl.MultiAgentEnvRunner(config), fastmarl.MultiAgentEnvRunner(config)
    before.sample(num_timesteps=4)
    after.set_state(before.get_state())
    with pytest.raises(FinishedAgentError, match="env 0, agent 'a', env step 6"):
        after.sample(num_timesteps=4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"batched": True}], ids=["single", "batched"])
def test_chunks_and_actions_equal_the_oracle(options):
    for seed in range(CASES):
        with world_of(seed) as world:
            world = replace(world, declared=True) if options else world
            for n_parts in (1, 2 + seed % 2):
                both = Resumed(replace(world, num_splits=n_parts), **options)
                for chunk, expected in both.run():
                    assert_same_chunk(world, chunk, expected)
                both.assert_same_actions()


class ConnectedAndResumed(Remade, Connected):
    def __init__(self, seed):
        self.options = connected_options(replace(make_world(random.Random(seed)), declared=True))
        super().__init__(seed)


@pytest.mark.slow
def test_so_they_do_with_connectors():
    for seed in SEEDS[: CASES // 2]:
        assert_equals_oracle(ConnectedAndResumed(seed), metrics=False)


# Networks that explore, in runners that are saved in files.


CLOCKS = ("sample", "_timer", "_ms", "_sec_mean", "_between_sampling", "_connector")  # ends of keys


def without_clocks(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith(CLOCKS)}


def assert_same_chunks(got, wanted, names):
    """`names`: ids of the wanted episodes -> those that were got; equal if they had begun before."""
    assert len(got) == len(wanted) > 0
    for one, two in zip(got, wanted, strict=True):
        assert names.setdefault(two.id_, one.id_ if two.env_t_started == 0 else two.id_) == one.id_
        assert one.reset_seed == two.reset_seed
        assert_same(contents(one), contents(two))
        if two.env_states is not None:
            assert_same(one.env_states, two.env_states)


@pytest.mark.slow
@pytest.mark.parametrize("kind", params(KINDS, {"mpe2": "mpe2", "turns": "pettingzoo"}.get))
def test_a_restored_runner_goes_on_as_the_saved_one(kind, tmp_path):
    options = {"random_actions": kind == "random actions"}
    runner, others = make_runner(kind, metrics_num_episodes_for_smoothing=1), []
    n_resumed = 0
    for n_steps in (31, 1, 90):
        runner.sample(num_timesteps=n_steps, **options)
        runner.save_to_path(tmp_path / "checkpoint")
        others.append(fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path / "checkpoint", runner.config))
        runner.get_metrics()
        names = {}
        for n_more in (25, 60):
            wanted, got = (each.sample(num_timesteps=n_more, **options) for each in (runner, others[-1]))
            n_resumed += sum(chunk.env_t_started > 0 for chunk in wanted)
            assert_same_chunks(got, wanted, names)
        assert without_clocks(others[-1].get_metrics()) == without_clocks(runner.get_metrics())
    assert n_resumed > 10
    for each in (runner, *others):
        each.stop()


def test_agents_that_wait_after_their_first_action_keep_their_memory():
    """Agent a0 acts at every fifth step only."""
    config = fastmarl.EnvRunnerConfig(
        env=ResumableClocks, rl_module_spec=fastmarl.RLModuleSpec(module_class=StepCounter), seed=1
    )
    with fastmarl.MultiAgentEnvRunner(config) as saved, fastmarl.MultiAgentEnvRunner(config) as restored:
        saved.sample(num_timesteps=2)
        restored.set_state(saved.get_state())
        for runner in (saved, restored):
            (chunk,) = runner.sample(num_timesteps=10)
            assert chunk.agent_episodes["a0"].get_extra_model_outputs("count").tolist() == [[0, 0], [1, 1]]
