"""Accepted environments, how they are created, and the runner's checks of their first results."""

import functools
import importlib
import json
import pickle
import re
import sys
import types
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from support.optional import params

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import env_spaces, named_agents
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.form import check_reset_result, check_spaces, check_step_result
from fastmarl.core.envs.pettingzoo import ParallelPettingZooEnv
from fastmarl.core.envs.registry import env_creator, env_name, portable
from fastmarl.core.processes.scriptless import mentions_script
from fastmarl.errors import EnvCheckError, MultiAgentEnvError
from fastmarl.testing import CountingEnv, DyingAgentsEnv

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(2)


class Duck:
    """Has reset() and step(), and whatever else it is given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def reset(self, *, seed=None, options=None):
        return {}, {}

    def step(self, actions):
        return {}, {}, {}, {}, {}


class Parallel:
    """A PettingZoo ParallelEnv, as thin as can be: `script` holds (agents left, step() result)."""

    metadata = {"name": "parallel_v0"}  # noqa: RUF012

    def __init__(self, *script):
        self.possible_agents = ["a", "b"]
        self.agents = ["a", "b"]
        self.script = list(script)
        self.calls = []

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return DISCRETE

    def reset(self, seed=None, options=None):
        self.calls.append((seed, options))
        return {}, {}

    def step(self, actions):
        self.agents, result = self.script.pop(0)
        return result

    def state(self):
        return np.arange(3)

    def render(self):
        return "picture"

    def close(self):
        self.calls.append("closed")


# What counts as an environment


@pytest.mark.parametrize(
    "env",
    [
        CountingEnv(),
        Duck(possible_agents=["a"]),
        Duck(get_observation_space=lambda agent: BOX),
        Duck(observation_spaces={"a": BOX}),
        Duck(observation_space=BOX),
    ],
    ids=["ours", "possible_agents", "getter", "spaces", "one space"],
)
def test_multi_agent_envs_are_taken_as_they_are(env):
    assert as_multi_agent_env(env) is env


def test_parallel_pettingzoo_envs_get_their_adapter():
    env = Parallel()
    adapter = as_multi_agent_env(env)
    assert isinstance(adapter, ParallelPettingZooEnv)
    assert adapter.env is env


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (gym.Env(), "got Env, a single-agent environment; .*possible_agents"),
        (Duck(), "got Duck, a single-agent environment"),
        (None, r"got None, which has no reset\(\) and step\(\)"),
    ],
    ids=["gymnasium", "no agents", "nothing"],
)
def test_errors_say_why_an_env_is_not_multi_agent(env, message):
    with pytest.raises(EnvCheckError, match=message):
        as_multi_agent_env(env)


# Spaces


class FromMethod(fastmarl.MultiAgentEnv):
    def get_observation_space(self, agent_id):
        return BOX

    def get_action_space(self, agent_id):
        return DISCRETE


def with_spaces(base=fastmarl.MultiAgentEnv, **attributes):
    return type("Env", (base,), attributes)()


@pytest.mark.parametrize(
    "env",
    [
        with_spaces(observation_spaces={1: BOX}, action_spaces={1: DISCRETE}),
        with_spaces(observation_space=BOX, action_space=DISCRETE),
        with_spaces(observation_space=gym.spaces.Dict({1: BOX}), action_space=gym.spaces.Dict({1: DISCRETE})),
        with_spaces(observation_space={1: BOX}, action_space={1: DISCRETE}),
        with_spaces(observation_spaces={2: DISCRETE}, observation_space=BOX, action_space=DISCRETE),
        with_spaces(Duck, observation_spaces={1: BOX}, action_spaces={1: DISCRETE}),
        FromMethod(),
        ParallelPettingZooEnv(Parallel()),
    ],
    ids=["dicts", "one for all", "Dict space", "dict of spaces", "fallback", "no base class", "method", "pettingzoo"],
)
def test_spaces_are_found_in_every_form(env):
    assert env_spaces(env, 1) == (BOX, DISCRETE)


class Wrapper:
    """As people write them: what it lacks is the inner env's."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


class Halved(Wrapper):
    """Shows half of each observation."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_spaces = dict.fromkeys(env.possible_agents, gym.spaces.Box(0, np.inf, (2,), np.float32))

    def reset(self, **kwargs):
        obs, infos = self.env.reset(**kwargs)
        return {agent: observation[:2] for agent, observation in obs.items()}, infos

    def step(self, actions):
        obs, *rest = self.env.step(actions)
        return {agent: observation[:2] for agent, observation in obs.items()}, *rest


@pytest.mark.parametrize("wrap", [Halved, lambda env: Wrapper(Halved(env)), lambda env: Halved(Wrapper(env))])
def test_a_wrappers_spaces_win_over_those_of_the_env_inside(wrap):
    config = fastmarl.EnvRunnerConfig(env=lambda config: wrap(CountingEnv(2)), model_config={"fcnet_hiddens": [4]})
    runner = fastmarl.MultiAgentEnvRunner(config)
    assert runner.get_spaces()["default_policy"][0].shape == (2,)
    (episode,) = runner.sample(num_episodes=1)
    assert episode.agent_episodes["agent_0"].get_observations(3).tolist() == [3, 3]


def test_a_dict_space_without_the_agent_is_the_space_of_all():
    space = gym.spaces.Dict({"position": BOX})
    assert env_spaces(with_spaces(observation_space=space, action_space=DISCRETE), "a") == (space, DISCRETE)


def by_id(space):
    return gym.spaces.Dict({0: space, 1: space})


class Nameless(fastmarl.MultiAgentEnv):
    """Agents 0 and 1, not in possible_agents; observations are samples of their spaces."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def reset(self, *, seed=None, options=None):
        return {agent: env_spaces(self, agent)[0].sample() for agent in range(2)}, {}

    def step(self, actions):
        return self.reset()[0], dict.fromkeys(actions, 1.0), {"__all__": True}, {}, {}


PARTS = gym.spaces.Dict({"left": BOX, "right": BOX})
NAMELESS = {  # attributes -> ids by which their spaces are given
    "Dict spaces by id": ({"observation_space": by_id(BOX), "action_space": by_id(DISCRETE)}, [0, 1]),
    "and agents": ({"observation_space": by_id(BOX), "action_space": by_id(DISCRETE), "agents": [0]}, [0, 1]),
    "dicts": ({"observation_space": {0: BOX, 1: BOX}, "action_space": {0: DISCRETE, 1: DISCRETE}}, [0, 1]),
    "spaces by id": ({"observation_spaces": {0: BOX, 1: BOX}, "action_spaces": {0: DISCRETE, 1: DISCRETE}}, [0, 1]),
    "spaces by id, one action space": ({"observation_spaces": {0: BOX, 1: BOX}, "action_space": DISCRETE}, [0, 1]),
    "one Dict space for all": ({"observation_space": PARTS, "action_space": DISCRETE}, []),
    "the same keys in actions": ({"observation_space": PARTS, "action_space": PARTS, "agents": [0, 1]}, []),
    "one space for all": ({"observation_space": BOX, "action_space": DISCRETE}, []),
}


@pytest.mark.parametrize("options", [{}, {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"}])
@pytest.mark.parametrize(("attributes", "ids"), NAMELESS.values(), ids=NAMELESS)
def test_spaces_by_id_name_agents_where_possible_agents_does_not(attributes, ids, options):
    assert named_agents(Nameless(**attributes)) == ids
    model = {"fcnet_hiddens": []}
    make = functools.partial(Nameless, **attributes)
    config = fastmarl.EnvRunnerConfig(env=lambda config: make(), model_config=model, **options)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        (episode,) = runner.sample(num_episodes=1)
        of_module = runner.get_spaces()["default_policy"]
        assert list(runner.get_spaces()["__env__"][0]) == ids
    assert of_module == env_spaces(Nameless(**attributes), 0)
    assert {agent: part.get_return() for agent, part in episode.agent_episodes.items()} == {0: 1.0, 1: 1.0}


def test_none_is_no_agent():
    env = Nameless(observation_space=BOX, action_space=DISCRETE)
    env.reset = lambda **options: ({None: BOX.sample()}, {})
    config = fastmarl.EnvRunnerConfig(env=lambda config: env, model_config={"fcnet_hiddens": []})
    with pytest.raises(MultiAgentEnvError, match=r"env 0, env step 0: expected agent ids as keys of .*, got None"):
        fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=1)


def test_spaces_that_come_with_the_first_reset_are_asked_for_before():
    with pytest.raises(EnvCheckError, match=r"no observation space for agent 0; add it .* before the first reset\(\)"):
        fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=lambda config: Nameless(possible_agents=[0, 1])))


def test_missing_and_wrong_spaces_are_named():
    with pytest.raises(EnvCheckError, match="Env has no observation space for agent 'a'; add it to observation_spaces"):
        env_spaces(with_spaces(), "a")
    with pytest.raises(EnvCheckError, match="action space of agent 'a', got 5; add a gymnasium space"):
        env_spaces(with_spaces(observation_space=BOX, action_space=5), "a")

    class Raising(FromMethod):
        def get_action_space(self, agent_id):
            return {}[agent_id]

    with pytest.raises(EnvCheckError, match=r"Raising.get_action_space\('a'\) raised KeyError\('a'\)"):
        env_spaces(Raising(), "a")


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ("ab", "expected a list of agent ids as possible_agents, got 'ab'"),
        (7, "expected a list"),
        ([["a"]], r"must be hashable, got \['a'\]"),
        ([("a", [])], "must be hashable"),
        (["a", "b", "a"], "contains 'a' more than once"),
        (["a", "c"], "no observation space for agent 'c'"),
        (["a", None], "possible_agents contains None, which is reserved for no agent in batches; use another id"),
    ],
)
def test_static_check_names_env_and_mistake(agents, message):
    env = with_spaces(possible_agents=agents, observation_spaces={"a": BOX, "b": BOX}, action_space=DISCRETE)
    with pytest.raises(EnvCheckError, match=rf"env 3 \(Env\): .*{message}"):
        check_spaces(env, 3)


def test_static_check_calls_neither_reset_nor_step():
    check_spaces(with_spaces(possible_agents=["a"], observation_space=BOX, action_space=DISCRETE), 0)
    check_spaces(with_spaces(), 0)  # no possible_agents: any may come


# PettingZoo's parallel envs

GO_ON = {"a": False, "b": False}


@pytest.mark.parametrize(
    ("agents_left", "terminateds", "truncateds", "expected"),
    [
        (["a", "b"], GO_ON, GO_ON, (False, False)),
        (["b"], {"a": True, "b": False}, GO_ON, (False, False)),
        ([], {"a": True, "b": True}, GO_ON, (True, False)),
        ([], GO_ON, {"a": True, "b": True}, (False, True)),
        ([], {"a": True, "b": False}, {"a": False, "b": True}, (False, True)),
        ([], {}, {}, (True, False)),
    ],
    ids=["goes on", "one dies", "terminated", "truncated", "both", "agents gone without flags"],
)
def test_the_adapter_adds_the_flags_of_all(agents_left, terminateds, truncateds, expected):
    result = {"a": 0}, {"a": 1.0}, dict(terminateds), dict(truncateds), {"a": {}}
    env = ParallelPettingZooEnv(Parallel((agents_left, result)))
    obs, rewards, all_terminateds, all_truncateds, infos = env.step({})
    assert (all_terminateds.pop("__all__"), all_truncateds.get("__all__", False)) == expected
    assert all_terminateds == terminateds
    assert {agent: flag for agent, flag in all_truncateds.items() if agent != "__all__"} == truncateds
    assert (obs, rewards, infos) == ({"a": 0}, {"a": 1.0}, {"a": {}})
    assert result[2:4] == (terminateds, truncateds), "the env's own dicts must stay as they are"


def test_the_adapter_hands_everything_else_through():
    raw = Parallel()
    env = ParallelPettingZooEnv(raw)
    env.reset(seed=5, options={"x": 1})
    assert env.state().tolist() == [0, 1, 2]
    assert env.render() == "picture"
    assert env.agents == ["a", "b"]
    env.close()
    assert raw.calls == [(5, {"x": 1}), "closed"]


# Names


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr("fastmarl.core.envs.registry._registered", {})
    fastmarl.register_env("counting", lambda env_config: CountingEnv(**env_config))


def module_named(monkeypatch, name, **attributes):
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def parallel_env(**options):
    return options


@pytest.mark.needs("magent2", "mpe2")
@pytest.mark.parametrize("is_function", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("name", ["mpe2.simple_spread_v3", "magent2.environments.battle_v4"])
def test_pettingzoos_modules_and_functions_get_options(name, is_function):
    module = importlib.import_module(name)
    env = module.parallel_env if is_function else module  # MAgent2's function has options by position
    adapter = as_multi_agent_env(env_creator(env)({"max_cycles": 3}))
    adapter.reset(seed=1)
    for _ in range(3):
        *_, truncateds, _infos = adapter.step(dict.fromkeys(adapter.agents, 0))
    assert all(truncateds.values())
    assert portable(env) == (env if is_function else name)


def test_a_function_of_options_alone_gets_them():
    assert env_creator(parallel_env)({"x": 1}) == {"x": 1}


def test_a_function_called_env_with_a_config_gets_that():
    def env(config=None):
        return config

    assert env_creator(env)({"x": 1}) == {"x": 1}


def test_a_module_without_an_env_is_refused():
    with pytest.raises(EnvCheckError, match=r"expected parallel_env\(\) or env\(\) in the module json"):
        env_creator(json)


def test_gymnasiums_envs_by_name_have_one_agent():
    env = as_multi_agent_env(env_creator("CartPole-v1")({"max_episode_steps": 3}))
    bare = gym.make("CartPole-v1", max_episode_steps=3)
    obs, infos = env.reset(seed=5)
    expected, info = bare.reset(seed=5)
    np.testing.assert_array_equal(obs[0], expected)
    assert infos == {0: info}
    assert (env.possible_agents, env.get_action_space(0)) == ([0], bare.action_space)
    for t in range(3):
        obs, rewards, terminateds, truncateds, _ = env.step({0: t % 2})
        expected, reward, *_ = bare.step(t % 2)
        np.testing.assert_array_equal(obs[0], expected)
        assert rewards == {0: reward}
    assert (terminateds, truncateds) == ({0: False, "__all__": False}, {0: True, "__all__": True})
    env.close()


def test_classes_callables_and_registered_names_get_the_config():
    assert env_creator(DyingAgentsEnv) is DyingAgentsEnv
    assert env_creator("counting")({"num_agents": 5}).possible_agents[4] == "agent_4"
    fastmarl.register_env("counting", lambda env_config: env_config)
    assert env_creator("counting")({"x": 1}) == {"x": 1}, "a name may be registered anew"


HORIZON = {"horizon": 5}


class Options:
    """Constructor of classes that are made with keywords."""

    def __init__(self, render_mode=None, horizon=60):
        self.made_with = render_mode, horizon


class Config:
    """Constructor of classes that are made with a whole config."""

    def __init__(self, env_config=None, horizon=60):
        self.made_with = env_config, horizon


class Batch:
    """A stand-in for a constructor of batches."""

    def __init__(self, num_envs, horizon=60):
        self.made_with = num_envs, horizon


class Turns(Parallel):
    """An AECEnv, if passed as a class."""

    def agent_iter(self): ...

    def last(self): ...


def parallel_env_in_a_module(render_mode=None, horizon=60):
    return Options(render_mode, horizon)


parallel_env_in_a_module.__name__ = "parallel_env"


@pytest.mark.parametrize("named", ["as it is", "registered", "in a module", "partial", "in another process"])
@pytest.mark.parametrize(
    ("creator", "made_with"),
    [
        (type("Pair", (Options, Parallel), {}), (None, 5)),
        (type("Game", (Options, Turns), {}), (None, 5)),
        (type("Team", (Options, gym.Env), {}), (None, 5)),
        (type("Vector", (Options, gym.vector.VectorEnv), {}), (None, 5)),
        (type("VectorOfMany", (Batch, gym.vector.VectorEnv), {}), (7, 5)),
        (type("Many", (Batch, fastmarl.ArrayEnv), {}), (7, 5)),
        (parallel_env_in_a_module, (None, 5)),
        (type("RLlibsPair", (Config, Parallel), {}), (HORIZON, 60)),
        (type("RLlibsTeam", (Config, gym.Env), {}), (HORIZON, 60)),
        (type("RLlibsMany", (Config, fastmarl.ArrayEnv), {}), (HORIZON, 60)),
        (type("Ours", (Options, fastmarl.MultiAgentEnv, gym.Env), {}), (HORIZON, 60)),
        (type("NoneOfThese", (Options, Duck), {}), (HORIZON, 60)),
    ],
)
def test_classes_are_made_as_their_kind_is(monkeypatch, creator, made_with, named):
    env = functools.partial(creator) if named == "partial" else creator
    if named in ("registered", "in another process"):
        fastmarl.register_env("named", creator)
        env = portable("named") if named == "in another process" else "named"
    elif named == "in a module":
        module_named(monkeypatch, "my_envs", creator=creator)
        env = "my_envs:creator"
    assert env_creator(env)(EnvContext(HORIZON, 0, num_envs=7)).made_with == made_with


@pytest.mark.needs("ray")
def test_rllibs_classes_get_the_complete_config():
    rllibs = importlib.import_module("ray.rllib.env.multi_agent_env").MultiAgentEnv
    assert env_creator(type("Pair", (Options, rllibs), {}))(HORIZON).made_with == (HORIZON, 60)


def test_keywords_that_a_class_does_not_take_are_named():
    with pytest.raises(EnvCheckError, match=r"cannot create .*test_envs.Pair with env_config={'horizn': 5} as keyw"):
        env_creator(type("Pair", (Options, Parallel), {}))({"horizn": 5})


@pytest.mark.parametrize(
    ("creator", "problem"),
    [
        (type("Team", (gym.Env,), {}), "takes no arguments"),
        (functools.partial(type("Pair", (Options, Parallel), {}), None, 60), "multiple values for argument 'horizon'"),
    ],
)
def test_keywords_that_nothing_takes_any_more_are_named(creator, problem):
    with pytest.raises(EnvCheckError, match=rf"with env_config={{'horizon': 5}} as keyword .*{problem}"):
        env_creator(creator)(HORIZON)


def test_module_and_class_name_an_env():
    assert env_creator("fastmarl.testing:CountingEnv") is CountingEnv
    assert portable("fastmarl.testing:CountingEnv") == "fastmarl.testing:CountingEnv"
    config = fastmarl.EnvRunnerConfig(env="fastmarl.bench.relative_speed_table:ReadyDicts")
    assert fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=1)[0].env_steps() == 1


def test_an_id_takes_its_registration_to_another_process(monkeypatch):
    monkeypatch.setitem(gym.registry, "Short-v0", replace(gym.spec("CartPole-v1"), id="Short-v0", max_episode_steps=3))
    env = portable("Short-v0")
    sent = pickle.dumps(env)
    gym.registry["Short-v0"] = gym.spec("Acrobot-v1")
    assert env({}).env.spec.id == "Acrobot-v1"  # here, what it is now
    del gym.registry["Short-v0"]
    there = pickle.loads(pickle.dumps(portable(pickle.loads(sent))))  # and on to a third one
    assert (env_name(there), there({}).env.spec.max_episode_steps) == ("Short-v0", 3)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_game_may_be_one_that_the_script_has_registered_with_openspiel(monkeypatch, is_loaded):
    monkeypatch.delitem(sys.modules, "pyspiel", raising=False)
    if is_loaded:
        monkeypatch.setitem(sys.modules, "pyspiel", types.ModuleType("pyspiel"))
    assert mentions_script(pickle.dumps(portable("openspiel.own_game"))) == is_loaded


def test_module_and_function_names_make_envs_with_options(monkeypatch):
    module_named(monkeypatch, "my_envs", parallel_env=parallel_env)
    assert env_creator("my_envs:parallel_env")({"x": 1}) == {"x": 1}


@pytest.mark.parametrize("id_", ["OfTwo-v0", "OfTwo"])
def test_a_module_registers_gymnasiums_ids_when_it_is_imported(monkeypatch, tmp_path, id_):
    source = f"import gymnasium\ngymnasium.register({id_!r}, 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    (tmp_path / "registering.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "registering", raising=False)
    assert env_creator(f"registering:{id_}")({}).possible_agents == [0]
    del gym.registry[id_]


@pytest.mark.needs("magent2", "mpe2", "pettingzoo")
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("mpe2.some_v1", "mpe2.some_v1"),
        ("pettingzoo.sisl.some_v1", "pettingzoo.sisl.some_v1"),
        ("magent2.some_v1", "magent2.environments.some_v1"),
        ("magent2.environments.some_v1", "magent2.environments.some_v1"),
    ],
)
def test_modules_make_parallel_envs(monkeypatch, name, module):
    module_named(monkeypatch, module, parallel_env=lambda **options: options)
    assert env_creator(name)({"max_cycles": 3}) == {"max_cycles": 3}


UNKNOWN = {  # name -> message
    "countign": "no environment 'countign': it is not registered in this process; .*did you mean 'counting'",
    "warehouse": r"see fastmarl.register_env\(\), or give my_module:MyEnv, as on the command line$",
    "fastmarl.testing:CountingEnvs": r"no 'CountingEnvs'; did you mean 'fastmarl.testing:CountingEnv'",
    "no_such_package:Env": "the package 'no_such_package' is not installed",
    "fastmarl.no_such_module:Env": "No module named 'fastmarl.no_such_module'",
    "fastmarl.testing:No-v0": "Environment `No` doesn't exist",
    ":CountingEnv": "'' is not a module name",
    "mpe2.simple_spred_v3": "no module mpe2.simple_spred_v3; did you mean 'mpe2.simple_spread_v3'",
    "magent2.batle_v4": "did you mean 'magent2.battle_v4'",
    "mpe2.simple_spread": r"which has none; .*; did you mean 'mpe2.simple_spread_v3'\?",
    "simple_spread_v3": "did you mean 'mpe2.simple_spread_v3' or 'fastmarl.simple_spread'",
    "CartPole": "did you mean 'CartPole-v1'",
    "kuhn_poker": "did you mean 'openspiel.kuhn_poker'",
    "vmas.balanc": "vmas has no such scenario; did you mean 'vmas.balance'",
    "no_such_package.env_v1": "the package 'no_such_package' is not installed",
    "json.decoder": r"expected parallel_env\(\) or env\(\) in the module json.decoder, which has none",
}


def package_of(name):
    """The optional package without which its message is another."""
    package = {"simple_spread_v3": "mpe2", "kuhn_poker": "pyspiel"}.get(name, name.partition(".")[0])
    return package if package in ("mpe2", "magent2", "vmas", "pyspiel") else None


@pytest.mark.parametrize("name", params(UNKNOWN, package_of))
def test_unknown_names_are_explained(name):
    with pytest.raises(EnvCheckError, match=UNKNOWN[name]):
        env_creator(name)


@pytest.mark.parametrize("name", params(["mpe2.simple_spread_v3", "CartPole-v1", "fastmarl.cart_pole"], package_of))
def test_options_that_there_are_not_are_named(name):
    with pytest.raises(EnvCheckError, match=rf"cannot create {name} with env_config=.*bogus.*unexpected keyword"):
        env_creator(name)({"bogus": 1})


@pytest.mark.needs("mpe2")
def test_a_type_error_of_an_envs_own_comes_through(monkeypatch):
    module_named(monkeypatch, "mpe2.broken_v0", parallel_env=lambda: "a" + 1)
    with pytest.raises(TypeError, match="can only concatenate str"):
        env_creator("mpe2.broken_v0")({})


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("fastmarl.core.envs.registry.find_spec", lambda package: None)
    with pytest.raises(EnvCheckError, match=re.escape("'mpe2' is not installed; pip install mpe2 (or, in a clone")):
        env_creator("mpe2.simple_spread_v3")


@pytest.mark.needs("mpe2")
def test_errors_of_an_import_name_the_missing_package(monkeypatch, tmp_path):
    (tmp_path / "needy_v0.py").write_text("import no_such_physics_engine\n")
    monkeypatch.setattr("mpe2.__path__", [str(tmp_path)])
    with pytest.raises(EnvCheckError, match=r"No module named 'no_such_physics_engine'; pip install .*pettingzoo"):
        env_creator("mpe2.needy_v0")


@pytest.mark.parametrize("env", [Duck(), 5, None])
def test_invalid_env_creators_are_refused(env):
    message = r"instance of Duck, but several copies are" if isinstance(env, Duck) else "must be a class, a calla"
    with pytest.raises(EnvCheckError, match=message):
        env_creator(env)
    with pytest.raises(EnvCheckError, match=f"creator of 'mine' .*{message}"):
        fastmarl.register_env("mine", env)


def test_a_class_that_takes_no_config_is_refused_when_it_is_named():
    with pytest.raises(
        EnvCheckError, match=r"but Parameterless does not accept it; .*lambda env_config: Parameterless\("
    ):
        env_creator(type("Parameterless", (CountingEnv,), {"__init__": lambda self: None}))


# The first results

STEP = ({"a": 0}, {"a": 0.0}, {"__all__": False}, {}, {})


def replaced(index, part):
    return (*STEP[:index], part, *STEP[index + 1 :])


def test_good_results_pass():
    check_reset_result(({}, {}), 0)
    check_step_result(STEP, 0, 1)
    check_step_result(replaced(2, {"a": np.True_, "__all__": np.False_}), 0, 1)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"a": 0}, "expected (observations, infos) from reset(), got only observations, as in old Gym"),
        (({"a": 0},), "got 1 values"),
        (None, "got NoneType None"),
        (({"a": 0}, None), "expected a dict keyed by agent id as infos from reset(), got NoneType None"),
        ((np.zeros(2), {}), "expected a dict keyed by agent id as observations from reset(), got ndarray"),
    ],
)
def test_reset_mistakes(result, problem):
    with pytest.raises(MultiAgentEnvError, match=re.escape(problem)) as raised:
        check_reset_result(result, 2)
    assert raised.value.args[:3] == (2, None, 0)


@pytest.mark.parametrize(
    ("result", "agent", "problem"),
    [
        (STEP[:4], None, "got four values, as in old Gym; split dones into terminateds and truncateds"),
        (STEP[:3], None, "got 3 values"),
        (list(STEP), None, "got list"),
        (replaced(1, 1.0), None, "expected a dict keyed by agent id as rewards from step(), got float 1.0"),
        (replaced(2, {"a": False}), None, "expected the key '__all__' in terminateds"),
        (replaced(2, {"a": 0, "__all__": False}), "a", "expected True or False in terminateds, got int 0"),
        (replaced(3, {"__all__": None}), "__all__", "expected True or False in truncateds, got NoneType None"),
    ],
)
def test_step_mistakes(result, agent, problem):
    with pytest.raises(MultiAgentEnvError, match=re.escape(problem)) as raised:
        check_step_result(result, 2, 7)
    assert raised.value.args[:3] == (2, agent, 7)
