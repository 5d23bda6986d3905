"""Policies: what they are made of, what they keep of agents, and how they act."""

import copy
import functools
import inspect

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.differences import assert_same, is_same
from support.exhaustive import further
from support.overheard import Wander
from support.policy_kinds import (
    BOUNDED,
    BOX,
    CHOICE,
    LSTM,
    SMALL,
    Average,
    Plain,
    overheard_runner,
    policies_of,
    policy_of,
)
from support.trees import spoilt

import fastmarl
from fastmarl import connectors
from fastmarl.checkpoint import load_state, save_state
from fastmarl.connectors import EnvToModuleConnector, ModuleToEnvConnector
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.errors import (
    CheckpointError,
    ConfigError,
    ModuleOutputError,
    UnknownModuleError,
)
from fastmarl.play.loaded_policy import parts_from
from fastmarl.runner.state import saved_policy as saved
from fastmarl.testing import CountingEnv

OBS = np.linspace(-1, 1, 5, dtype=np.float32)
MAIN = "default_policy"


def two_modules(**options):
    """A runner with an LSTM and a plain default net."""
    config = {
        "env": lambda config: CountingEnv(3, 9),
        "policies": {
            "lstm": fastmarl.RLModuleSpec(model_config=LSTM),
            "mlp": fastmarl.RLModuleSpec(model_config=SMALL),
        },
        "policy_mapping_fn": lambda agent_id, episode: "lstm" if agent_id == "agent_0" else "mlp",
    }
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**(config | options)))


# What they are made of.


@pytest.mark.parametrize("kind", ["all, and memory", "default", "own memory"])
def test_a_policy_is_a_copy(kind, tmp_path):
    runner, _ = overheard_runner(kind)
    policies = policies_of(runner, kind, tmp_path).values()
    obs = [runner.env.envs[0].observation_space.sample() for _ in range(50)]
    before = [[policy.act(each) for each in obs] for policy in policies]
    state = runner.get_state()
    with torch.no_grad():
        for parameter in runner.module.parameters():
            parameter.mul_(-3)
    runner.sample(num_timesteps=50)
    for policy in policies:
        policy.reset()
    assert_same([[policy.act(each) for each in obs] for policy in policies], before)
    assert not is_same(runner.get_state("rl_module"), state["rl_module"])
    assert_same(runner.get_state(["num_resets"]), runner.get_state(["num_resets"]))


def test_statistics_are_used_and_stay(tmp_path):
    runner, _ = overheard_runner("filter")
    policies = policies_of(runner, "filter", tmp_path)
    learned = runner.env_to_module.get_state()
    for policy in policies.values():
        for _ in range(30):
            policy.act(100 * OBS)
        (connector,) = policy._only._connectors.connectors
        assert_same(connector.get_state(), learned[MAIN]["MeanStdFilter"])
    assert_same(runner.env_to_module.get_state(), learned)


def test_policies_are_saved_as_plain_data_next_to_the_runners_state(tmp_path):
    runner, _ = overheard_runner("all, and memory")
    path = runner.save_to_path(tmp_path / "new")
    state = load_state(path)
    entry, config = state.pop("policy"), state.pop("config")
    assert set(state) == set(runner.get_state())
    assert set(config) == {"options", "left_out"}
    assert entry["modules"][MAIN]["connectors"][0] == {
        "class": "MeanStdFilter",
        "arguments": {"de_mean_to_zero": True, "de_std_to_one": True, "clip_by_value": 10.0, "update_stats": True},
    }
    runner.restore_from_path(path)
    save_state(tmp_path / "old", state)  # as it was before there were policies
    runner.restore_from_path(tmp_path / "old")
    with pytest.raises(CheckpointError, match=r"or by a fastmarl version that saved no policies"):
        fastmarl.Policy.from_checkpoint(tmp_path / "old")
    entry["version"] += 1
    save_state(tmp_path / "next", {**state, "policy": entry})
    with pytest.raises(CheckpointError, match=r"written by a newer fastmarl \(policy format 2"):
        fastmarl.Policy.from_checkpoint(tmp_path / "next")
    with pytest.raises(CheckpointError, match="does not exist"):
        fastmarl.Policy.from_checkpoint(tmp_path / "nowhere")


def test_bundled_connectors_are_saved_with_all_their_arguments():
    kinds = EnvToModuleConnector, ModuleToEnvConnector
    exported = [getattr(connectors, name) for name in connectors.__all__]
    bundled = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, kinds)}
    assert set(saved.ARGUMENTS) == bundled - {*kinds}
    for kind, names in saved.ARGUMENTS.items():
        assert tuple(inspect.signature(kind).parameters) == names


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, *further([1])])
def test_a_damaged_entry_is_refused_or_another_policy(every, tmp_path):
    """Whatever a checkpoint that fits its checksum says, there is one kind of error."""
    runner, _ = overheard_runner("all, and memory")
    state = load_state(runner.save_to_path(tmp_path))
    learned = {option: state[option] for option in CONNECTOR_OPTIONS}
    n_refused = 0
    for how, changed in spoilt(state["policy"], every):
        try:
            parts_from(changed, state["rl_module"], learned, {}, {})
        except ConfigError:
            n_refused += 1
        except Exception as error:
            raise AssertionError(how) from error
    assert n_refused > 500 / every


@pytest.mark.parametrize(("kind", "arguments", "text"), [
    ("any torch module", {}, r"is of class Plain: of custom .* pass modules={"),
    ("own actions", {}, r"is of class Chooser: of custom .* pass modules={"),
    ("other layers", {}, r"is of class Widened: of custom .* pass modules={"),
    ("any torch module", {"modules": {MAIN: Plain(n_obs=6)}},
     r"module 'default_policy': the state does not match this Plain: net"),
    ("any torch module", {"modules": {"x": Plain()}}, r"modules= has \['x'\], which are not among the saved modules"),
    ("any torch module", {"modules": {MAIN: fastmarl.modules.DefaultRLModule(BOUNDED, CHOICE)}},
     r"modules\['default_policy'\] has the spaces Box.* but it was trained"),
    ("any torch module", {"modules": Plain()}, r"modules=, by module id, must be a dict, got Plain"),
    ("own connector", {}, r"of which \['Average'\] are not part of fastmarl .* pass connectors={"),
    ("own connector", {"connectors": {MAIN: [Average()]}},
     r"connectors\['default_policy'\] must have the connectors .*, got \[Average\(\)\]"),
    ("own connector", {"connectors": {MAIN: Average()}}, r"connectors\['default_policy'\] must be a list .* Average"),
])  # fmt: skip
def test_modules_and_connectors_that_do_not_fit_are_refused(kind, arguments, text, tmp_path):
    runner, _ = overheard_runner(kind)
    with pytest.raises(CheckpointError, match=text):
        fastmarl.Policy.from_checkpoint(runner.save_to_path(tmp_path), **arguments)


def test_arguments_of_the_wrong_kind_are_refused(tmp_path):
    runner, _ = overheard_runner("default")
    with pytest.raises(ConfigError, match=r"expected a fastmarl.MultiAgentEnvRunner, got str"):
        fastmarl.Policy.from_runner("checkpoint")
    with pytest.raises(ConfigError, match="seed must be None or an integer >= 0, got -1"):
        fastmarl.Policy.from_runner(runner, seed=-1)
    with pytest.raises(ConfigError, match=r"policy_mapping_fn must be a function, .* got 'default_policy'"):
        fastmarl.Policy.from_checkpoint(runner.save_to_path(tmp_path), policy_mapping_fn=MAIN)


@pytest.mark.parametrize(("component", "state", "text"), [
    ("rl_module", None, r"can't create a policy .* must be a dict, got NoneType"),
    ("env_to_module_connector", None, r"can't create a policy .* must be a dict, got NoneType"),
    # A filter that knows nothing would change every observation in another way.
    ("env_to_module_connector", {}, r"the state of its connectors \['MeanStdFilter'\] was not saved"),
    ("env_to_module_connector", {MAIN: {}}, r"the state of its connectors \['MeanStdFilter'\] was not saved"),
])  # fmt: skip
def test_a_damaged_component_is_refused(component, state, text, tmp_path):
    runner, _ = overheard_runner("filter")
    save_state(tmp_path, {**load_state(runner.save_to_path(tmp_path)), component: state})
    with pytest.raises(CheckpointError, match=text):
        fastmarl.Policy.from_checkpoint(tmp_path)


@pytest.mark.parametrize("wrapped", [False, True])
def test_given_modules_get_the_weights_and_stay_apart_from_the_policy(wrapped, tmp_path):
    runner, _ = overheard_runner("any torch module")
    path = runner.save_to_path(tmp_path)
    given = fastmarl.modules.as_rl_module(Plain(), BOX, CHOICE) if wrapped else Plain()
    policy = fastmarl.Policy.from_checkpoint(path, {MAIN: given})
    saved = runner.module[MAIN].net.state_dict()
    assert given.training and all(torch.equal(saved[name], value) for name, value in given.net.state_dict().items())
    with torch.no_grad():
        for parameter in given.parameters():
            parameter.zero_()
    assert torch.equal(policy.parts[MAIN].module.net[0].weight, saved["0.weight"])


def test_given_modules_keep_their_weights_if_no_policy_can_be_made(tmp_path):
    runner, _ = overheard_runner("any torch module")
    state = load_state(runner.save_to_path(tmp_path))
    save_state(tmp_path, {**state, "rl_module": {MAIN: {}}})
    given = Plain()
    weights = copy.deepcopy(given.state_dict())
    with pytest.raises(CheckpointError, match="the state does not match this Plain"):
        fastmarl.Policy.from_checkpoint(tmp_path, {MAIN: given})
    assert all(torch.equal(weights[name], value) for name, value in given.state_dict().items())


def league(names, **options):
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: CountingEnv(2, 5),
        policies={name: Plain(4, 3) for name in names},
        policy_mapping_fn=lambda agent_id, episode: names[0],
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def test_one_policy_of_a_league_needs_its_own_module_alone(tmp_path):
    names = ["main", "past_0", "past_1"]
    runner = league(names, env_to_module_connector=connectors.MeanStdFilter())
    runner.sample(num_timesteps=5)
    path = runner.save_to_path(tmp_path)
    given = Plain(4, 3)
    policy = fastmarl.Policy.from_checkpoint(path, {"past_1": given}, module_ids=["past_1"])
    assert policy.module_ids == ["past_1"]
    assert torch.equal(given.net[0].weight, runner.module["past_1"].net[0].weight)
    everything = fastmarl.Policy.from_checkpoint(path, {name: Plain(4, 3) for name in names})
    space = policy.get_spaces()["past_1"][0]
    for obs in [space.sample() for _ in range(20)]:
        assert policy.act(obs) == everything.act(obs, module_id="past_1")
    with pytest.raises(
        CheckpointError, match=r"pass modules={'main': \.\.\., 'past_0': \.\.\., 'past_1': \.\.\.} .* pass module_ids="
    ) as error:
        fastmarl.Policy.from_checkpoint(path)
    assert str(error.value).count("is of class Plain") == 3
    with pytest.raises(
        CheckpointError, match=r"modules= has \['main'\], .* among the modules of module_ids, \['past_0"
    ):
        fastmarl.Policy.from_checkpoint(path, {"main": Plain(4, 3)}, module_ids=["past_0"])
    for wrong in ("main", [], ["other"], 3, [["main"]]):
        with pytest.raises(CheckpointError, match=r"module_ids must be a list of some of the saved modules \['main', "):
            fastmarl.Policy.from_checkpoint(path, module_ids=wrong)


@pytest.mark.parametrize("change", ["activation", "hook", "method"])
def test_default_nets_that_were_changed_must_be_given(change, tmp_path):
    runner, _ = overheard_runner("default")
    module = runner.module[MAIN]
    if change == "activation":
        module.trunk[2] = torch.nn.ReLU()
    elif change == "method":
        module._forward = functools.partial(type(module)._forward, module)
    else:
        module.pi.register_forward_hook(lambda *arguments: None)
    path = runner.save_to_path(tmp_path)
    with pytest.raises(CheckpointError, match=r"pass modules={'default_policy': \.\.\.}"):
        fastmarl.Policy.from_checkpoint(path)
    assert fastmarl.Policy.from_checkpoint(path, {MAIN: module}).act(OBS) in range(-2, 2)


def test_errors_name_spaces_that_are_not_saved(tmp_path):
    space = gym.spaces.Dict({"x": BOX, "text": gym.spaces.Text(3)})

    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(5, 4)

        def forward(self, batch):
            return {"action_dist_inputs": self.net(batch["obs"]["x"])}

    config = fastmarl.EnvRunnerConfig(
        env=lambda config: CountingEnv(2, 5),
        policies={MAIN: fastmarl.RLModuleSpec(lambda **o: Reader(), space, CHOICE)},
    )
    with pytest.warns(UserWarning, match="have parts that are not arrays"):
        runner = fastmarl.MultiAgentEnvRunner(config)
    path = runner.save_to_path(tmp_path)  # what needs no policy goes on as before
    with pytest.raises(CheckpointError, match=r"cannot restore the space Text\(.*, whose type is not supported"):
        fastmarl.Policy.from_checkpoint(path, {MAIN: Reader()})
    runner.restore_from_path(path)
    assert fastmarl.Policy.from_runner(runner).act({"x": OBS, "text": "abc"}) in range(-2, 2)


# Agents and modules.


@pytest.mark.parametrize("kind", ["frames", "LSTM", "previous", "own connector"])
def test_agents_are_kept_apart_until_they_are_reset(kind, tmp_path, rng):
    policy = policy_of(kind, tmp_path, "runner")
    story = rng.normal(size=(40, 5)).astype(np.float32)
    alone = [policy.act(obs, "alone", reward=1.5) for obs in story]
    policy.reset("alone")
    again = []
    for obs in story:
        again.append(policy.act(obs, "alone", reward=1.5))
        policy.act(rng.normal(size=5).astype(np.float32), "another", explore=True)
    assert again == alone
    policy.reset("another")  # resets only the named agent
    assert [policy.act(obs, "another", reward=1.5) for obs in story] == alone
    assert set(policy._only._table.envs[0].lane_of) == {"alone", "another"}
    policy.reset()
    assert not policy._only._table.envs[0].lane_of
    assert [policy.act(obs, "alone", reward=1.5) for obs in story] == alone


@pytest.mark.parametrize("ends", ["reset of it", "reset of all", "error"])
def test_rewards_from_before_an_agents_first_observation_are_forgotten(ends, tmp_path):
    policy = policy_of("previous", tmp_path, "runner")

    def acts():
        return [policy.act_batch({"a": OBS}, rewards={"a": 1.5})["a"] for _ in range(5)]

    want = acts()
    policy.reset()
    if ends == "error":
        with pytest.raises(ModuleOutputError):
            policy.act_batch({"b": OBS * np.nan}, rewards={"a": 100.0})
    else:
        policy.act_batch({"b": OBS}, rewards={"a": 100.0})
        policy.reset("a" if ends == "reset of it" else None)
    assert acts() == want


@pytest.mark.parametrize("kind", ["frames", "LSTM", "masks in infos", "own memory"])
def test_memory_does_not_grow(kind, tmp_path):
    policy = policy_of(kind, tmp_path, "runner")
    store = policy._only._store
    for i in range(400):
        policy.act(OBS, "one")
        policy.act(OBS, f"agent {i}", state={})
        if i > 200:
            policy.act(OBS, f"agent {i}")
            policy.reset(f"agent {i}")
    assert store.rows[0].capacity <= 256 and len(store.table.row_L) <= 16
    assert len(store.table.records[0].module_of) <= 1 and not store.table.envs[0].infos


def test_one_policy_holds_all_modules(tmp_path):
    runner = two_modules()
    obs, _ = runner.env.envs[0].reset()
    one = {agent: np.asarray(each) for agent, each in obs.items()}
    policy = fastmarl.Policy.from_runner(runner)
    path = runner.save_to_path(tmp_path)
    asked = []

    def mapping(agent_id, episode):
        asked.append((agent_id, episode))
        return runner.config.policy_mapping_fn(agent_id, episode)

    restored = fastmarl.Policy.from_checkpoint(path, policy_mapping_fn=mapping)
    assert policy.module_ids == restored.module_ids == ["lstm", "mlp"]
    assert repr(policy) == "<Policy with the modules ['lstm', 'mlp']>"
    assert set(policy.get_spaces()) == {"lstm", "mlp"}
    for _ in range(5):
        actions = policy.act_batch(one)
        assert list(actions) == list(one) and restored.act_batch(one) == actions
    assert asked == [(agent, None) for agent in one]  # once for each
    restored.reset()
    restored.act_batch(one)
    assert len(asked) == 2 * len(one)
    restored.reset(next(iter(one)))
    restored.act_batch(one)
    assert asked[2 * len(one) :] == asked[:1]
    unmapped = fastmarl.Policy.from_checkpoint(path)
    agent = next(iter(one))
    policy.reset()
    assert unmapped.act(one[agent], agent, module_id="lstm") == policy.act(one[agent], agent)
    with pytest.raises(ConfigError, match=r"one of the modules \['lstm', 'mlp'\] must act for agent 'x'"):
        unmapped.act(one[agent], "x")
    with pytest.raises(ConfigError, match=r"module_id='y' is not one of the modules \['lstm', 'mlp'\]"):
        unmapped.act(one[agent], module_id="y")
    stray = fastmarl.Policy.from_checkpoint(path, policy_mapping_fn=lambda agent_id, episode: "y")
    with pytest.raises(UnknownModuleError, match=r"policy_mapping_fn\('x'\) returned 'y'"):
        stray.act(one[agent], "x")
    with pytest.raises(ConfigError, match=r"policy_mapping_fn is called as f\(agent_id, episode\)"):
        fastmarl.Policy.from_checkpoint(path, policy_mapping_fn=lambda: "lstm")


# Actions.


def test_actions_belong_to_the_caller(tmp_path):
    for kind in ("normalised", "as they are", "parts", "a number", "a dict"):
        policy = policy_of(kind, tmp_path, "runner")
        first = policy.act(OBS)
        kept = copy.deepcopy(first)
        policy.act(-OBS)
        assert_same(first, kept)
        for leaf in first.values() if isinstance(first, dict) else [first]:
            if isinstance(leaf, np.ndarray):
                leaf[...] = 0
        assert_same(policy.act(OBS), kept)


def test_exploration_is_drawn_from_the_policys_own_seed():
    runner, _ = overheard_runner("default")
    torch.manual_seed(0)
    draws = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2), ("d", None)):
        policy = fastmarl.Policy.from_runner(runner, seed=seed)
        draws[name] = [policy.act(OBS, explore=True) for _ in range(200)]
    assert draws["a"] == draws["b"]
    assert draws["c"] != draws["a"] and draws["d"] != draws["a"]
    with torch.no_grad():
        logits = runner.module[MAIN]({"obs": torch.from_numpy(OBS)[None]})["action_dist_inputs"][0]
    policy = fastmarl.Policy.from_runner(runner, seed=3)
    n = 20_000
    counts = np.bincount([policy.act(OBS, explore=True) + 2 for _ in range(n)], minlength=4)
    expected = n * torch.softmax(logits, 0).numpy()
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # of chi-square with 3 degrees: once in 250,000 seeds


@pytest.mark.parametrize("kind", ["bits", "LSTM", "a tuple"])
def test_exploration_by_torch_is_seeded_too(kind):
    runner, _ = overheard_runner(kind)
    first, second = (fastmarl.Policy.from_runner(runner, seed=5) for _ in range(2))
    assert_same([first.act(OBS, explore=True) for _ in range(20)], [second.act(OBS, explore=True) for _ in range(20)])


def test_schedules_stand_where_the_runner_stood(tmp_path):
    seen = []

    class WithSchedule(fastmarl.RLModule):
        def setup(self):
            self.net = torch.nn.Linear(5, 4)

        def _forward_exploration(self, batch, *, t):
            seen.append(t)
            return {"action_dist_inputs": self.net(batch["obs"])}

        _forward_inference = fastmarl.RLModule._forward

    config = fastmarl.EnvRunnerConfig(
        env=Wander,
        env_config={"observation_space": BOX, "action_space": CHOICE},
        rl_module_spec=fastmarl.RLModuleSpec(WithSchedule),
        num_env_runners=3,
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=10)
    path = runner.save_to_path(tmp_path)
    restored = fastmarl.Policy.from_checkpoint(path, {MAIN: WithSchedule(BOX, CHOICE)})
    for policy in (restored, fastmarl.Policy.from_runner(runner)):
        policy.act(OBS, explore=True)
        assert seen[-1] == 30


class Turns(fastmarl.MultiAgentEnv):
    """Two agents take turns; the mover gets its reward at once, while it waits for its next turn."""

    def __init__(self, config):
        self.possible_agents = ["a", "b"]
        box = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_spaces = self.action_spaces = dict.fromkeys("ab", box)

    def reset(self, *, seed=None, options=None):
        self.t, self.actions = 0, []
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions):
        mover, following = ("ab", "ba")[self.t % 2]
        self.t += 1
        self.actions.append({agent: float(action[0]) for agent, action in actions.items()})
        obs = {following: np.zeros(1, np.float32)}
        return obs, {mover: float(self.t)}, {"__all__": self.t == 6}, {"__all__": False}, {}


@pytest.mark.parametrize("policies", [None, ["a", "b"]], ids=["shared", "own"])
def test_rewards_of_waiting_agents_count_as_in_a_runner(policies):
    mapping = {"policies": policies, "policy_mapping_fn": lambda agent, episode: agent} if policies else {}
    config = fastmarl.EnvRunnerConfig(
        env=Turns, env_to_module_connector=connectors.PrevActionsPrevRewards(), seed=0, **mapping
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.evaluate(1)
        wanted, policy = runner.env.envs[0].actions, fastmarl.Policy.from_runner(runner)
    env, is_over, rewards = Turns({}), False, {}
    obs, _ = env.reset()
    while not is_over:
        obs, rewards, terminateds, *_ = env.step(policy.act_batch(obs, rewards=rewards))
        is_over = terminateds["__all__"]
    assert len(wanted) == 6 and env.actions == wanted
