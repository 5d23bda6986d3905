"""The state of running episodes: what is in it when, what is refused, and what happens when it can't be taken."""

import contextlib
import copy
import enum
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.exhaustive import further
from support.process_runners import contents
from support.trees import spoilt
from support.wandering import BOX, Wandering, make_runner

import fastmarl
from fastmarl.connectors import EnvToModuleConnector, MeanStdFilter
from fastmarl.errors import CheckpointError, ConfigError, EnvCheckError


def episodes_of(runner):
    return runner.get_state("running_episodes")["running_episodes"]


def is_harmless(how):
    """Return true if the changed state still works for a runner: free values, counts, and states of envs."""
    free = ("'envs'", "'reward'", "'return'", "'custom_data'", "'weights_seq_no'", "'outputs'", "'obs'", "'raw_obs'",
            "'recurrent'", "'env_states'", "'infos'", "'env_t'", "'t_started'", "'steps'", "'finished'", "'turns'",
            "'early_rewards'", "'agent_returns'", "'agent_steps'", "'module_returns'", "'module_of'", "'lookback'",
            "'duration_s'", "'reset_seed'", "'env_t_started'", "'env_states_from'", "'id_'", "'agent_ids'",
            "'num_envs'")  # fmt: skip
    return any(name in how.partition(":")[0] for name in free)


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, *further([3])])
@pytest.mark.parametrize("kind", ["connectors", "batch", *further(["recurrent", "states, infos, long lookback"])])
def test_a_spoilt_state_is_refused_or_can_be_gone_on_with(kind, every):
    runner, other, adventurous = make_runner(kind), make_runner(kind), make_runner(kind)
    runner.sample(num_timesteps=30)
    other.sample(num_timesteps=12)
    state, before = runner.get_state(), other.get_state()
    original = repr(state["running_episodes"])
    refused = 0
    for how, episodes in spoilt(state["running_episodes"], every):
        try:
            other.check_state({"running_episodes": episodes})
        except ConfigError:
            refused += 1
            with pytest.raises(ConfigError):
                other.set_state({**state, "running_episodes": episodes})
        else:
            assert is_harmless(how) or repr(episodes) == original, how
            with contextlib.suppress(
                Exception
            ):  # of an env that was given nonsense; memory is not written beyond its end
                adventurous.set_state({"running_episodes": episodes})
                for chunk in adventurous.sample(num_timesteps=9):
                    contents(chunk)
    assert refused > 900 / every
    assert_same(without_clock(other.get_state()), without_clock(before))


def without_clock(state):
    state = copy.deepcopy(state)
    for episode in state["running_episodes"]["episodes"]:
        del episode["duration_s"]
    return state


def test_there_are_none_within_a_call_and_after_one_that_failed():
    seen = []

    def within(env_runner, **kwargs):
        seen.append(episodes_of(env_runner))

    def failing(self, actions):
        raise RuntimeError("broken")

    runner = make_runner("plain", callbacks_on_episode_end=within)
    assert episodes_of(runner)["episodes"] == []
    runner.sample(num_timesteps=90)
    assert seen and not any(seen)
    assert episodes_of(runner)["episodes"]
    good, Wandering.step = Wandering.step, failing
    try:
        with pytest.raises(RuntimeError, match="broken"):
            runner.sample(num_timesteps=9)
    finally:
        Wandering.step = good
    assert episodes_of(runner)["episodes"] == []
    runner.sample(num_timesteps=9)
    assert episodes_of(runner)["episodes"]


class Seeded(Wandering):
    """Wandering, but all randomness comes from the seed of a reset."""

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        return super().reset()


class Stateless(Seeded):
    supports_checkpoint = False


@pytest.mark.parametrize(
    "options",
    [
        {"env": Seeded},
        {"env": Stateless},
        {"env": "fastmarl.gridworld"},
        {"env": "fastmarl.gridworld", "worker_num_splits": 2},
        {"env": Seeded, "gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"},
    ],
    ids=str,
)
def test_a_state_without_running_episodes_begins_new_ones(options, tmp_path):
    options = {**options, "num_envs_per_env_runner": 2, "seed": 4}

    def sampled(each, **goal):
        return [contents(chunk) for chunk in each.sample(**goal or {"num_timesteps": 25})]

    with make_runner("plain", **options) as runner, make_runner("plain", **options) as other:
        start = runner.get_state()
        first = sampled(runner)
        sampled(runner, num_episodes=2)
        between = runner.get_state()
        second = sampled(runner, num_episodes=2)
        sampled(runner)
        for state, wanted, goal in ((start, first, {}), (between, second, {"num_episodes": 2})):
            runner.set_state(state)
            assert_same(sampled(runner, **goal), wanted)
            sampled(runner)
            runner.restore_from_path(runner.save_to_path(tmp_path, state=state))
            assert_same(sampled(runner, **goal), wanted)
        other.set_state(start)
        assert_same(sampled(other), first)
        other.set_state({"running_episodes": start["running_episodes"]})
        assert all(chunk.env_t_started == 0 for chunk in other.sample(num_timesteps=1))


def test_episodes_of_envs_without_states_are_kept_by_a_runner_that_takes_a_state():
    runner = make_runner("plain", env=Stateless)
    runner.sample(num_timesteps=1)
    state = runner.get_state()
    assert state["running_episodes"] == {}
    runner.set_state(state)
    assert all(chunk.env_t_started == 1 for chunk in runner.sample(num_timesteps=1))


def test_envs_without_checkpoint_support_begin_new_episodes(tmp_path):
    class Plain(Wandering):
        supports_checkpoint = False

    def make(config):
        return (Plain if config.vector_index == 1 else Wandering)(config)

    runner = make_runner("plain", env=make)
    runner.sample(num_timesteps=30)
    assert [episode["env_index"] for episode in episodes_of(runner)["episodes"]] == [0, 2]
    runner.save_to_path(tmp_path)
    other = fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, runner.config)
    ids = {chunk.id_: chunk for chunk in other.sample(num_timesteps=6)}
    going_on = {episode["id_"] for episode in episodes_of(runner)["episodes"]}
    assert going_on <= ids.keys() and len(ids) == 3
    (begun,) = [chunk for id_, chunk in ids.items() if id_ not in going_on]
    assert begun.env_t_started == 0
    assert other.get_state("num_resets")["num_resets"][1] == runner.get_state("num_resets")["num_resets"][1] + 1


def test_attributes_that_a_wrapper_passes_on_do_not_count_as_its_own():
    class PassingOn:
        def __init__(self, env):
            self.env = env

        def __getattr__(self, name):
            return getattr(self.env, name)

    runner = make_runner("plain", env=lambda config: PassingOn(Wandering(config)))
    runner.sample(num_timesteps=30)
    assert episodes_of(runner) == {}


def test_an_env_that_lacks_a_promised_method_is_refused():
    class Lacking(fastmarl.MultiAgentEnv):
        supports_checkpoint = True
        possible_agents = ["a"]  # noqa: RUF012
        observation_space = action_space = BOX
        set_state = None

    with pytest.raises(EnvCheckError, match=r"env 0 .*supports_checkpoint=True but no method set_state\(\)"):
        make_runner("plain", env=lambda config: Lacking())


def test_a_state_is_refused_by_envs_that_do_not_take_one():
    class Plain(Wandering):
        supports_checkpoint = False

    runner, other = make_runner("plain"), make_runner("plain", env=Plain)
    runner.sample(num_timesteps=30)
    with pytest.raises(ConfigError, match=r"a state for env 0, but .*Plain.* does not support checkpoints"):
        other.set_state(runner.get_state())


class Team(enum.Enum):
    RED = 1
    BLUE = 2


class Side(enum.StrEnum):
    LEFT = "l"
    RIGHT = "r"


class Renamed(fastmarl.MultiAgentEnv):
    """Wandering, whose agents have other ids."""

    supports_checkpoint = True

    def __init__(self, ids, config, possible_agents):
        self.env = Wandering(config)
        self.possible_agents = list(possible_agents)
        self.observation_space, self.action_space = BOX, gym.spaces.Discrete(3)
        self.get_state, self.set_state = self.env.get_state, self.env.set_state
        self.ids = dict(zip(self.env.possible_agents, ids, strict=True))

    def reset(self, *, seed=None, options=None):
        return tuple(self._renamed(part) for part in self.env.reset(seed=seed))

    def step(self, actions):
        names = {id_: name for name, id_ in self.ids.items()}
        parts = self.env.step({names[agent]: action for agent, action in actions.items()})
        return tuple(self._renamed(part) for part in parts)

    def _renamed(self, part):
        return {self.ids.get(name, name): value for name, value in part.items()}


def renamed_runner(ids, possible_agents=None):
    model = fastmarl.RLModuleSpec(observation_space=BOX, action_space=gym.spaces.Discrete(3))
    mapping = {"policies": {"p": model}, "policy_mapping_fn": lambda agent_id, episode: "p"}
    known = ids if possible_agents is None else possible_agents
    return make_runner("plain", env=lambda config: Renamed(ids, config, known), late_rewards="accumulate", **mapping)


def resumed(ids, folder, **options):
    """Return the chunks of a runner, and those of one restored from its checkpoint."""
    runner = renamed_runner(ids, **options)
    runner.sample(num_timesteps=31)
    other = renamed_runner(ids, **options)
    other.restore_from_path(runner.save_to_path(folder))
    return [each.sample(num_timesteps=60) for each in (runner, other)]


ODD_IDS = {
    "StrEnum and Enum": [*Side, *Team],
    "NumPy": [*np.arange(2), *np.array(["a", "b"])],
    "others": [b"a", frozenset("a"), (Team.RED, 1), (np.int64(1), np.str_("a"))],
}


@pytest.mark.parametrize("ids", ODD_IDS.values(), ids=ODD_IDS)
def test_resumed_episodes_have_the_envs_own_agent_ids(ids, tmp_path):
    wanted, got = resumed(ids, tmp_path)
    assert any(chunk.env_t_started > 0 for chunk in wanted)
    for one, two in zip(wanted, got, strict=True):
        assert_same(contents(two), contents(one))
        assert list(map(repr, two.agent_episodes)) == list(map(repr, one.agent_episodes))


def test_episodes_with_unrecognisable_agents_are_replaced_by_new_ones(tmp_path):
    class Nameless:
        """Its text has its address, as it is by default, which differs after a restart."""

    runner = renamed_runner([Nameless() for _ in range(4)])
    runner.sample(num_timesteps=31)
    assert episodes_of(runner)["episodes"]
    runner.save_to_path(tmp_path)
    other = renamed_runner([Nameless() for _ in range(4)])
    other.restore_from_path(tmp_path)
    assert_same(other.get_weights(), runner.get_weights())
    assert all(chunk.env_t_started == 0 for chunk in other.sample(num_timesteps=9))


@pytest.mark.parametrize(
    ("ids", "possible_agents"),
    [([*Side, *Team], []), ([*Team, "a", repr(Team.RED)], None)],
    ids=["no possible_agents", "one text"],
)
def test_without_a_form_for_an_agent_id_a_file_has_no_running_episodes(ids, possible_agents, tmp_path):
    _, got = resumed(ids, tmp_path, possible_agents=possible_agents)
    assert all(chunk.env_t_started == 0 for chunk in got)


@pytest.mark.parametrize(("kind", "n_envs", "goes_on"), [("plain", 5, True), ("plain", 2, False), ("batch", 4, False)])
def test_another_number_of_envs(kind, n_envs, goes_on):
    runner, other = make_runner(kind), make_runner(kind, num_envs_per_env_runner=n_envs)
    runner.sample(num_timesteps=40)
    other.set_state(runner.get_state())
    resumed = {episode["id_"] for episode in episodes_of(runner)["episodes"]}
    chunks = other.sample(num_timesteps=n_envs)
    assert len(chunks) == n_envs
    assert {chunk.id_ for chunk in chunks if chunk.env_t_started} == (resumed if goes_on else set())


def test_a_connector_that_keeps_agents_apart_in_ways_unknown():
    class Unsaid(EnvToModuleConnector):
        def __call__(self, obs, rows):
            return obs

    runner = make_runner("plain", env_to_module_connector=[Unsaid(), MeanStdFilter()])
    runner.sample(num_timesteps=40)
    assert episodes_of(runner) == {}


def test_episodes_that_would_be_others_now_are_left_out():
    runner = make_runner("two modules")
    runner.sample(num_timesteps=40)
    assert episodes_of(runner)["episodes"]
    runner.remove_module("odd", new_agent_to_module_mapping_fn=lambda agent_id, episode: "even")
    left = episodes_of(runner)
    assert left["episodes"] == [] and set(left["envs"]) == {0, 1, 2}
    other = make_runner("two modules", policies=["even"], policy_mapping_fn=lambda agent_id, episode: "even")
    other.set_state(runner.get_state())
    assert [env.n_resets for env in other.env.envs] == [env.n_resets for env in runner.env.envs]
    assert other.sample(num_timesteps=9)


def test_a_state_can_be_taken_after_modules_have_come_and_gone():
    """Their numbers are others then."""
    runner = make_runner("two modules")
    runner.sample(num_timesteps=20)
    to_even = {"policy_mapping_fn": lambda agent_id, episode: "even"}
    runner.remove_module("odd", new_agent_to_module_mapping_fn=to_even["policy_mapping_fn"])
    runner.sample(num_timesteps=60, force_reset=True)
    state = runner.get_state()
    assert state["running_episodes"]["episodes"]
    other = make_runner("two modules", policies=["even"], **to_even)
    for each in (runner, other):
        each.set_state(state)
    returns = [[chunk.get_return() for chunk in each.sample(num_timesteps=60)] for each in (runner, other)]
    assert returns[0] == returns[1]


def test_a_state_can_be_taken_by_a_runner_in_the_midst_of_others_and_again():
    runner, other = make_runner("plain"), make_runner("plain")
    runner.sample(num_timesteps=40)
    other.sample(num_timesteps=17)
    other.get_weights()
    state = runner.get_state()
    frozen = copy.deepcopy(without_clock(state))
    continuations = []
    for _ in range(2):
        other.set_state(state)
        assert all(part.training for part in other.module["default_policy"].modules())
        continuations.append([chunk.get_return() for chunk in other.sample(num_timesteps=50)])
    assert continuations[0] == continuations[1] == [chunk.get_return() for chunk in runner.sample(num_timesteps=50)]
    assert_same(without_clock(state), frozen)


def test_an_env_that_fails_to_take_its_state_leaves_the_runner_as_it_was(tmp_path):
    class Stubborn(Wandering):
        refuses = False

        def set_state(self, state):
            if self.refuses and state["n_resets"] > 1:
                type(self).refuses = False
                raise ValueError("not this one")
            super().set_state(state)

    runner, other = make_runner("plain", env=Stubborn), make_runner("plain", env=Stubborn)
    twin = make_runner("plain", env=Stubborn)
    runner.sample(num_timesteps=150)
    runner.save_to_path(tmp_path)
    for each in (other, twin):
        each.sample(num_timesteps=12)
    Stubborn.refuses = True
    with pytest.raises(CheckpointError, match=r"could not be restored; the runner keeps its state: .*not this one"):
        other.restore_from_path(tmp_path)
    returns = [[chunk.get_return() for chunk in each.sample(num_timesteps=60)] for each in (other, twin)]
    assert returns[0] == returns[1]
    Stubborn.refuses = True
    with pytest.raises(ValueError, match="not this one") as raised:
        other.set_state(runner.get_state())
    assert "while restoring env 0 from a state" in raised.value.__notes__[0]
    assert all(chunk.env_t_started == 0 for chunk in other.sample(num_timesteps=9))


@pytest.mark.slow
def test_envs_that_have_ended_with_their_worker_are_left_out(tmp_path):
    runner = make_runner("workers", restart_failed_sub_environments=True)
    runner.sample(num_timesteps=40)
    os.kill(runner.env.envs[0]._worker.pid, signal.SIGKILL)
    state = episodes_of(runner)
    assert set(state["envs"]) == {2}
    runner.save_to_path(tmp_path)
    assert len(runner.sample(num_timesteps=9)) >= 3
    other = fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, runner.config)
    assert {chunk.id_ for chunk in other.sample(num_timesteps=9)} > {each["id_"] for each in state["episodes"]}
    runner.stop()
    other.stop()


def test_data_kept_by_envs_and_callbacks_is_not_shared():
    def write(episode, **kwargs):
        episode.custom_data.setdefault("seen", []).append(episode.env_t)

    runner = make_runner("plain", callbacks_on_episode_step=write)
    runner.sample(num_timesteps=30)
    state = runner.get_state()
    other = make_runner("plain", callbacks_on_episode_step=write)
    other.set_state(state)
    kept = copy.deepcopy(state["running_episodes"]["episodes"][0]["custom_data"])
    assert kept["seen"]
    for each in (runner, other):
        each.sample(num_timesteps=30)
    assert state["running_episodes"]["episodes"][0]["custom_data"] == kept
    assert episodes_of(other)["episodes"][0]["custom_data"] == episodes_of(runner)["episodes"][0]["custom_data"]


def test_an_env_state_that_can_not_be_saved_is_named(tmp_path):
    class Odd(Wandering):
        def get_state(self):
            return {"odd": object()}

    runner = make_runner("plain", env=Odd)
    runner.sample(num_timesteps=9)
    with pytest.raises(CheckpointError, match=r"\['envs'\]\[0\]\['odd'\] is a object, which cannot be saved"):
        runner.save_to_path(tmp_path)
