"""Live policies as a user meets them: what is removed, what is returned, what it costs, errors, state, heuristics."""

import tracemalloc
import weakref
from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import Says as ScriptedModule
from support.scripted import Scripted, Step, scripted

import fastmarl
from fastmarl.errors import CheckpointError, ConfigError, RunnerStoppedError, UnknownModuleError

SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
AGENTS = ["a", "b"]


LENGTH = 10


def episode(joins=0, rewards=1.0):
    """Ten steps; "b" joins after some, or at once."""
    return [Step("a" if t < joins else AGENTS, rewards, terminated=t == LENGTH) for t in range(LENGTH + 1)]


class Says(torch.nn.Module):
    """Everybody takes action `number`, which is a weight, too."""

    def __init__(self, number=0):
        super().__init__()
        self.register_buffer("number", torch.tensor([number]))

    def forward(self, batch):
        return {"actions": self.number.expand(len(batch["obs"]))}


SPEC = fastmarl.RLModuleSpec(lambda **kwargs: Says())


def make_runner(**options):
    defaults = {
        "env": scripted(episode(), space=SPACE),
        "policies": {"main": Says(0), "other": Says(1)},
        "policy_mapping_fn": own_module,
        "seed": 1,
    }
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **options}))


def own_module(agent_id, episode):
    return {"a": "main", "b": "other"}[agent_id]


def everybody(module_id):
    return lambda agent_id, episode: module_id


def actions_of(episodes):
    """Per chunk: agent -> the one action that it always took."""
    return [{agent: only(part.get_actions()) for agent, part in e.agent_episodes.items()} for e in episodes]


def only(values):
    (value,) = set(values.tolist())
    return value


def test_a_league_grows_between_calls():
    runner = make_runner()
    assert actions_of(runner.sample(num_episodes=1)) == [{"a": 0, "b": 1}]
    for number in (2, 0):
        name = f"main_v{number}"
        runner.add_module(name, SPEC, new_agent_to_module_mapping_fn=lambda agent, episode, name=name: (
            "main" if agent == "a" else name
        ))  # fmt: skip
        runner.set_weights({name: {"number": np.array([number])}})
        assert actions_of(runner.sample(num_episodes=1)) == [{"a": 0, "b": number}]
    assert list(runner.module) == list(runner.config.policies) == ["main", "other", "main_v2", "main_v0"]
    assert runner.get_spaces()["main_v2"] == (SPACE, gym.spaces.Discrete(3))


def test_running_episodes_keep_the_old_function_and_the_removed_module():
    runner = make_runner(env=scripted(episode(joins=5), space=SPACE))
    runner.sample(num_timesteps=3)
    removed = runner.remove_module("other", new_agent_to_module_mapping_fn=everybody("main"))
    runner.add_module("other", Says(2))
    first, second = runner.sample(num_timesteps=12)
    assert (first.env_t, first.is_done, second.env_t) == (10, True, 5)
    assert actions_of([first]) == [{"a": 0, "b": 1}]  # "b" came when its module had been removed
    assert actions_of(runner.sample(num_timesteps=5)) == [{"a": 0, "b": 0}]
    assert int(removed.module.number) == 1
    assert runner.get_weights(["other"])["other"]["number"].tolist() == [2]


def test_later_episodes_do_not_mix_with_those_of_a_removed_module():
    """Data of an episode are stored in memory that earlier episodes have used."""
    runner = make_runner(env=scripted(episode(joins=5), space=SPACE), metrics_num_episodes_for_smoothing=1)
    runner.sample(num_timesteps=3)
    runner.remove_module("other", new_agent_to_module_mapping_fn=own_module)
    runner.add_module("other", Says(2))
    episodes = runner.sample(num_timesteps=57)
    assert actions_of(episodes) == [{"a": 0, "b": 1}] + [{"a": 0, "b": 2}] * 5


def test_custom_data_are_those_of_one_episode():
    def mapping(agent_id, episode):
        episode.custom_data.setdefault(agent_id, episode.id_)
        return own_module(agent_id, episode)

    runner = make_runner(policy_mapping_fn=mapping, metrics_num_episodes_for_smoothing=1)
    first, rest = runner.sample(num_timesteps=15), runner.sample(num_timesteps=40)
    for episode in [*first, *rest]:
        assert episode.custom_data == {"a": episode.id_, "b": episode.id_}
    assert len({episode.id_ for episode in [*first, *rest]}) == 6


def test_an_episode_that_was_reset_already_is_begun_again_where_fresh_ones_are_wanted():
    runner = make_runner()
    runner.sample(num_timesteps=10)  # the episode ended with the call, and the env was reset
    runner.set_policy_mapping_fn(everybody("main"))
    assert actions_of(runner.sample(num_timesteps=1)) == [{"a": 0, "b": 1}]
    assert actions_of(runner.sample(num_timesteps=9)) == [{"a": 0, "b": 1}]
    runner.set_policy_mapping_fn(everybody("other"))
    assert actions_of(runner.sample(num_timesteps=1, force_reset=True)) == [{"a": 1, "b": 1}]


def test_an_index_that_is_used_again_is_another_module():
    """Chunks are looked at late, when another module has the place of theirs."""
    runner = make_runner()
    before = runner.sample(num_timesteps=15)
    runner.remove_module("other", new_agent_to_module_mapping_fn=everybody("main"))
    runner.sample(num_timesteps=10)
    runner.add_module("new", Says(2), new_agent_to_module_mapping_fn=everybody("new"))
    after = runner.sample(num_timesteps=15)
    assert [episode.agent_episodes["b"].module_id for episode in before] == ["other", "other"]
    assert [episode.agent_episodes["b"].module_id for episode in after] == ["main", "new"]
    assert len(runner._sampling.rollout.policies.by_index) == 2


def test_spaces_are_compared_again_where_an_index_is_used_again():
    runner = make_runner()
    runner.sample(num_timesteps=15)
    runner.remove_module("other", new_agent_to_module_mapping_fn=everybody("main"))
    runner.sample(num_timesteps=10)
    other = fastmarl.RLModuleSpec(lambda **kwargs: Says(), observation_space=SPACE, action_space=gym.spaces.Discrete(2))
    runner.add_module(
        "new", other, new_agent_to_module_mapping_fn=lambda agent_id, episode: "main" if agent_id == "a" else "new"
    )
    with pytest.raises(ConfigError, match="agent 'b' of env 0 is mapped to module 'new', which has different spaces"):
        runner.sample(num_timesteps=15)


def test_changes_in_on_episode_end_hold_from_the_next_episode_on():
    def on_episode_end(*, env_runner, **kwargs):
        ended.append(len(ended))
        if len(ended) == 1:
            env_runner.remove_module("other")
            env_runner.add_module("new", SPEC, new_agent_to_module_mapping_fn=everybody("new"))
            env_runner.set_weights({"new": {"number": [7 % 3]}})

    ended = []
    runner = make_runner(callbacks_on_episode_end=on_episode_end)
    episodes = runner.sample(num_timesteps=20)
    assert actions_of(episodes) == [{"a": 0, "b": 1}, {"a": 1, "b": 1}]
    assert [episode.agent_episodes["b"].module_id for episode in episodes] == ["other", "new"]
    metrics = runner.get_metrics()
    assert metrics["num_module_steps_sampled"] == {"main": 10, "other": 10, "new": 20}
    assert metrics["module_episode_returns_mean"] == {"main": 10, "other": 10, "new": 20}


def test_changes_in_on_sample_end():
    def on_sample_end(*, env_runner, samples, **kwargs):
        if "other" in env_runner.module:
            env_runner.remove_module("other", new_agent_to_module_mapping_fn=everybody("main"))

    runner = make_runner(callbacks_on_sample_end=on_sample_end)
    assert [actions_of(runner.sample(num_timesteps=n)) for n in (3, 7)] == [
        [{"a": 0, "b": 1}],
        [{"a": 0, "b": 1}],
    ]
    assert actions_of(runner.sample(num_timesteps=5)) == [{"a": 0, "b": 0}]


class Prefers(fastmarl.RLModule):
    """Connect four: always the column of its weight, or the next legal one."""

    def setup(self):
        self.register_buffer("column", torch.tensor(0))

    def _forward(self, batch, **kwargs):
        return {"actions": torch.as_tensor([move(mask, int(self.column)) for mask in batch["obs"]["action_mask"]])}


def move(mask, column):
    return next(other % 7 for other in range(column, column + 7) if mask[other % 7])


@pytest.mark.needs("pettingzoo")
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_past_snapshots_are_opponents():
    """A league of connect four whose snapshots come in the middle of games: each moves by the weights of its name."""

    def match(agent_id, episode):
        if "players" not in episode.custom_data:
            sides = rng.permutation(["player_0", "player_1"]).tolist()
            episode.custom_data["players"] = {sides[0]: "main", sides[1]: str(rng.choice(opponents))}
        return episode.custom_data["players"][agent_id]

    rng, opponents, met = np.random.default_rng(0), ["v0"], set()
    spec = fastmarl.RLModuleSpec(Prefers)
    env = "pettingzoo.classic.connect_four_v3"
    runner = make_runner(
        env=env, policies={"main": spec, "v0": spec}, policy_mapping_fn=match, num_envs_per_env_runner=4
    )
    for column in range(1, 7):
        runner.set_weights({"main": {"column": np.array(column)}}, weights_seq_no=column)
        for episode in runner.sample(num_timesteps=60):
            for agent, part in episode.agent_episodes.items():
                name = episode.custom_data["players"][agent]
                assert part.module_id == name
                seq_nos = part.get_extra_model_outputs("weights_seq_no").tolist()  # of "main" when the agent acted
                columns = seq_nos if name == "main" else [int(name[1:])] * len(part)
                masks = part.get_observations()["action_mask"][:-1]
                assert part.get_actions().tolist() == list(map(move, masks, columns))
                met.add(name)
        opponents.append(f"v{column}")
        runner.add_module(opponents[-1], spec)
        runner.set_weights({opponents[-1]: runner.get_weights()["main"]})
    assert met >= {"main", *opponents[:5]}


# Who learns.


def test_policies_to_train():
    assert make_runner().should_module_be_updated("other")
    runner = make_runner(policies_to_train=["main"])
    assert [runner.should_module_be_updated(module_id) for module_id in ("main", "other")] == [True, False]
    asked = []
    runner = make_runner(policies_to_train=lambda *args: asked.append(args))
    assert runner.should_module_be_updated("main", "a batch") is False
    assert asked == [("main", "a batch")]
    runner.add_module("new", SPEC, new_should_module_be_updated={"new"})
    assert not runner.should_module_be_updated("main")
    runner.remove_module("new")
    assert runner.config.policies_to_train == []


def test_only_learning_agents_are_returned_and_all_are_counted():
    def on_episode_end(*, episode, prev_episode_chunks, **kwargs):
        seen.append([set(chunk.agent_episodes) for chunk in (*prev_episode_chunks, episode)])

    seen = []
    options = {"policies_to_train": ["main"], "num_envs_per_env_runner": 2}
    runner = make_runner(**options, return_only_policies_to_train=True, callbacks_on_episode_end=on_episode_end)
    everything = make_runner(**options)
    for n in (6, 14, 4):
        episodes, whole = runner.sample(num_timesteps=n), everything.sample(num_timesteps=n)
        assert [set(episode.agent_episodes) for episode in episodes] == [{"a"}] * len(whole)
        for episode, expected in zip(episodes, whole, strict=True):
            part = expected.agent_episodes["a"]
            assert episode.agent_steps() == len(part) == len(expected)
            assert (episode.env_t, episode.is_done, episode.get_return()) == (
                expected.env_t,
                expected.is_done,
                len(part),
            )
            assert np.array_equal(episode.get_observations()["a"], part.get_observations())
            assert episode.get_agents_that_stepped() == {"a"}
    assert seen == [[{"a", "b"}] * 2] * 2
    counted = ("num_module_steps_sampled", "module_episode_returns_mean", "num_agent_steps_sampled")
    reports = runner.get_metrics(), everything.get_metrics()
    assert [reports[0][name] for name in counted] == [reports[1][name] for name in counted]
    assert reports[0]["num_module_steps_sampled"] == {"main": 24, "other": 24}


def test_changes_by_a_callback_to_an_agents_part_are_returned():
    def on_episode_end(*, episode, **kwargs):
        episode.agent_episodes["a"].custom_data["seen"] = True

    runner = make_runner(
        policies_to_train=["main"], return_only_policies_to_train=True, callbacks_on_episode_end=on_episode_end
    )
    (episode,) = runner.sample(num_episodes=1)
    assert episode.agent_episodes["a"].custom_data == {"seen": True}


def test_memory_of_agents_that_do_not_learn_is_not_held():
    runner = make_runner(policies_to_train=["main"], return_only_policies_to_train=True)
    runner.sample(num_timesteps=3)
    blocks = [weakref.ref(block) for block in runner._sampling.rollout.store.blocks]
    (episode,) = runner.sample(num_timesteps=3)
    assert [block() is None for block in blocks] == [False, True]
    assert episode.get_observations()["a"][-1].tolist() == [6, 6]


def test_waiting_agents_that_do_not_learn_are_left_out_with_their_infos():
    """After the first observation, all agents wait and get a reward of 1 and an info in each step."""
    waits = [AGENTS, *(Step([], dict.fromkeys(AGENTS, 1.0), infos={a: {"t": t} for a in AGENTS}) for t in (1, 2, 3))]
    runner = make_runner(env=scripted(waits), policies_to_train=["main"], return_only_policies_to_train=True)
    (episode,) = runner.sample(num_timesteps=3)
    assert episode.agent_episodes == {}
    assert episode.get_return(include_hanging_rewards=True) == 3
    assert episode.get_waiting_infos() == {"a": {t: {"t": t} for t in (1, 2, 3)}}
    assert len(episode) == 3


# What modules cost.


class Remembers(fastmarl.RLModule):
    """With 64 KiB of memory for each agent, as much as its initial state takes."""

    def get_initial_state(self):
        return {"h": np.zeros(1 << 14, np.float32)}

    def _forward(self, batch, **kwargs):
        return {"actions": np.zeros((len(batch["obs"]), 1), int), "state_out": batch["state_in"]}


def test_modules_that_do_not_act_hold_nothing_but_their_weights():
    runner = make_runner()
    spec = fastmarl.RLModuleSpec(Remembers)
    names = [f"v{i}" for i in range(10)]
    runner.sample(num_episodes=1)
    tracemalloc.start()
    try:
        for name in names:  # each acts in an episode
            runner.add_module(name, spec, new_agent_to_module_mapping_fn=everybody(name))
            runner.sample(num_episodes=2)
        runner.set_policy_mapping_fn(own_module)
        runner.sample(num_episodes=2)
        runner.sample(num_episodes=2)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert runner._sampling.rollout.store.active == [0, 1]
    assert held < len(names) * 2**17


def test_added_modules_begin_with_weights_of_their_own():
    """The seed and the number of the addition determine them, so all runners of a run have the same."""
    weights = []
    for _ in range(2):
        runner = make_runner(policies={"main": None, "other": None})
        for name in ("x", "y"):
            runner.add_module(name)
        weights.append([of_module["pi.weight"] for of_module in runner.get_weights().values()])
    assert all(np.array_equal(one, two) for one, two in zip(*weights, strict=True))
    assert len({one.tobytes() for one in weights[0]}) == 4


# Errors.


def test_errors_change_nothing():
    runner = make_runner()
    runner.sample(num_timesteps=3)
    config = runner.config
    for call, text in [
        (lambda: runner.add_module("main", SPEC), "module 'main' already exists; remove it, or pass override=True"),
        (lambda: runner.add_module("new", "spec"), r"policies\['new'\] must be None, an RLModuleSpec or a torch"),
        (lambda: runner.add_module("new", torch.nn.Linear), r"Linear'>; pass an instance, Linear\(\.\.\.\)"),
        (lambda: runner.add_module(3, SPEC), "at least one module id, and all ids must be strings, got"),
        (lambda: runner.add_module("new", SPEC, new_should_module_be_updated=["newer"]), r"unknown .* \['newer'\]"),
        (lambda: runner.remove_module("nobody"), r"unknown module 'nobody'; choose from \['main', 'other'\]"),
        (lambda: runner.set_policy_mapping_fn(None), "policy_mapping_fn must be callable, got None"),
        (lambda: make_runner(policies_to_train="main"), "policies_to_train must be module ids, a callable or None"),
    ]:
        with pytest.raises(ConfigError, match=text):
            call()
    assert runner.config is config
    assert list(runner.module) == ["main", "other"]
    assert actions_of(runner.sample(num_timesteps=7)) == [{"a": 0, "b": 1}]


def test_one_module_needs_no_mapping_function_until_there_are_two():
    runner = make_runner(policies={"main": Says(0)}, policy_mapping_fn=None)
    runner.sample(num_timesteps=3)
    with pytest.raises(ConfigError, match="policy_mapping_fn is required to choose among the policies"):
        runner.add_module("other", Says(1))
    runner.add_module("other", Says(1), new_agent_to_module_mapping_fn=everybody("other"))
    assert actions_of(runner.sample(num_timesteps=7)) == [{"a": 0, "b": 0}]
    with pytest.raises(ConfigError, match="the only module"):
        make_runner(policies={"main": Says(0)}, policy_mapping_fn=None).remove_module("main")


def test_a_mapping_function_that_names_a_removed_module():
    runner = make_runner()
    runner.remove_module("other")
    with pytest.raises(UnknownModuleError, match=r"policy_mapping_fn\('b'\) returned 'other', which is not one of"):
        runner.sample(num_timesteps=1)
    runner.set_policy_mapping_fn(everybody("main"))
    assert actions_of(runner.sample(num_timesteps=1)) == [{"a": 0, "b": 0}]


def test_a_failed_call_frees_removed_modules():
    runner = make_runner()
    runner.sample(num_timesteps=3)
    runner.add_module("main", ScriptedModule(actions=lambda obs: 1 / 0), override=True)
    assert actions_of(runner.sample(num_timesteps=7)) == [{"a": 0, "b": 1}]
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_episodes=1)
    runner.add_module("main", Says(2), override=True)
    assert actions_of(runner.sample(num_timesteps=1)) == [{"a": 2, "b": 1}]
    assert sum(policy is not None for policy in runner._sampling.rollout.policies.by_index) == 2


def test_nothing_can_be_changed_after_stop():
    runner = make_runner()
    runner.stop()
    for call in (
        lambda: runner.add_module("new", SPEC),
        lambda: runner.remove_module("other"),
        lambda: runner.set_policy_mapping_fn(own_module),
    ):
        with pytest.raises(RunnerStoppedError):
            call()


# State.


def test_state_and_parts_follow_the_modules(tmp_path):
    runner, other = make_runner(), make_runner()
    runner.add_module("new", Says(2), new_agent_to_module_mapping_fn=everybody("new"))
    runner.remove_module("other")
    runner.save_to_path(tmp_path)
    with pytest.raises(CheckpointError, match=r"unknown are \['new'\], missing are \['other'\]; call add_module"):
        other.restore_from_path(tmp_path)
    with pytest.warns(UserWarning, match="the runner has no 'rl_module/new'"):
        make_runner().set_state(runner.get_state())
    other.add_module("new", SPEC)
    other.remove_module("other", new_agent_to_module_mapping_fn=everybody("new"))
    other.restore_from_path(tmp_path)
    assert actions_of(other.sample(num_episodes=1)) == [{"a": 2, "b": 2}]
    again = fastmarl.MultiAgentEnvRunner.from_checkpoint(tmp_path, runner.config)
    assert actions_of(again.sample(num_episodes=1)) == [{"a": 2, "b": 2}]
    for rebuild in (runner.make_env, runner.make_module):
        rebuild()
        assert list(runner.module) == ["main", "new"]
        assert actions_of(runner.sample(num_episodes=1)) == [{"a": 2, "b": 2}]


# Modules without weights.


class BeatsTheLastMove(fastmarl.RLModule):
    """Rock, paper, scissors: beats what the other one did last. Observation 3: nothing yet."""

    def _forward(self, batch, **kwargs):
        return {"actions": (batch["obs"].numpy() + 1) % 3}


@pytest.mark.needs("pettingzoo")
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_a_heuristic_plays_against_a_net(tmp_path):
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env="pettingzoo.classic.rps_v2",
            policies={"net": None, "heuristic": fastmarl.RLModuleSpec(BeatsTheLastMove)},
            policy_mapping_fn=lambda agent_id, episode: "net" if agent_id == "player_0" else "heuristic",
            policies_to_train=["net"],
        )
    )
    (episode,) = runner.sample(num_episodes=1)
    net, heuristic = episode.agent_episodes["player_0"], episode.agent_episodes["player_1"]
    assert heuristic.get_actions().tolist() == ((heuristic.get_observations()[:-1] + 1) % 3).tolist()
    assert heuristic.get_actions()[1:].tolist() == ((net.get_actions()[:-1] + 1) % 3).tolist()
    assert "action_logp" in net.extra_model_output_keys
    assert set(heuristic.extra_model_output_keys) == {"weights_seq_no"}
    assert set(episode.get_extra_model_outputs("action_logp")) == {"player_0"}
    assert runner.get_weights()["heuristic"] == {}
    runner.restore_from_path(runner.save_to_path(tmp_path))
    runner.set_weights({"heuristic": {}})


def test_a_module_that_begins_to_give_another_output_has_nan_before():
    """As where random actions came first: one agent's column has one row for each of its actions."""
    runner = make_runner(policies={"main": None, "other": Says(1)})
    runner.sample(num_timesteps=2)
    (episode,) = runner.sample(num_timesteps=2, random_actions=True)
    part = episode.agent_episodes["b"]
    logp = part.get_extra_model_outputs("action_logp", slice(-1, None), neg_index_as_lookback=True)
    assert np.isnan(logp).tolist() == [True, False, False]


def test_a_module_without_agents_changes_no_draws():
    runners = [make_runner(policies={"main": None, "other": None}) for _ in range(2)]
    steps = defaultdict(list)
    for i in range(3):
        if i == 1:
            runners[1].add_module("idle", SPEC)
        for runner in runners:
            steps[runner] += [
                part.get_actions().tolist()
                for episode in runner.sample(num_timesteps=7)
                for part in episode.agent_episodes.values()
            ]
    assert steps[runners[0]] == steps[runners[1]]


@pytest.mark.parametrize("what", ["observation", "action", "start"])
def test_agents_of_other_spaces_are_refused(what):
    """Also where the mapping changes later, or one env differs from the first."""

    space, action_space = dict.fromkeys(AGENTS, SPACE), dict.fromkeys(AGENTS, gym.spaces.Discrete(3))
    if what == "observation":
        space["b"] = gym.spaces.Box(-1, 1, (3,), np.float32)
    if what == "action":
        action_space["b"] = gym.spaces.Discrete(2)

    def make_env(config):
        starts = what == "start" and config.vector_index == 1
        of_env = gym.spaces.Discrete(3, start=5) if starts else action_space
        return Scripted(episode(), space=space, action_space=of_env)

    runner = make_runner(
        env=make_env, num_envs_per_env_runner=2, policies=AGENTS, policy_mapping_fn=lambda agent, episode: agent
    )
    with pytest.raises(ConfigError, match=r"agent '.' of env . is mapped to module '.', which has different spaces"):
        sample_before_and_after(runner, everybody("a"))


def sample_before_and_after(runner, mapping_fn):
    runner.sample(num_episodes=2)
    runner.set_policy_mapping_fn(mapping_fn)
    runner.sample(num_episodes=2)


def test_errors_of_modules_name_all_of_them():
    wrong = dict.fromkeys(["a", "b"], 3)
    with pytest.raises(ConfigError, match=r"policies\['a'\] must be .*; policies\['b'\] must be"):
        make_runner(policies=wrong, policy_mapping_fn=lambda agent, episode: agent)
    runner = make_runner(policies=["a", "b"], policy_mapping_fn=lambda agent, episode: agent)
    weights = {name: {key: value[..., :0] for key, value in of.items()} for name, of in runner.get_weights().items()}
    with pytest.raises(ConfigError, match=r"module 'a': the state does not match .*; module 'b': the state does not"):
        runner.set_weights(weights)
