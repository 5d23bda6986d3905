"""Connectors of a module's outputs: what each place shows and changes, on record and for the env; what is refused."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.differences import assert_same
from support.overheard import Overheard
from support.scripted import Says

import fastmarl
from fastmarl.connectors import GetActions, MeanStdFilter, ModuleToEnvConnector, NormalizeAndClipActions
from fastmarl.errors import CheckpointError, ConfigError, ConnectorError
from fastmarl.testing import CountingEnv

BOX = gym.spaces.Box(np.float32([0, -4]), np.float32([10, 4]))
NESTED = gym.spaces.Dict({"go": gym.spaces.Discrete(3, start=5), "by": gym.spaces.Tuple([BOX])})


class Acting(CountingEnv):
    """CountingEnv with other actions; what it sends is random."""

    def __init__(self, config):
        super().__init__(num_agents=2, episode_length=7)
        space = config.get("space", gym.spaces.Discrete(3))
        self.action_spaces = dict.fromkeys(self.possible_agents, space)

    def reset(self, *, seed=None, options=None):
        self._rng = np.random.default_rng(seed)
        return self._mixed(super().reset(seed=seed, options=options))

    def step(self, actions):
        return self._mixed(super().step(actions))

    def _mixed(self, said):
        return {agent: self._rng.normal(size=4).astype(np.float32) for agent in said[0]}, *said[1:]


class Changed(ModuleToEnvConnector):
    """Does what a function does with the outputs, and notes their names."""

    per_agent_state = ()

    def __init__(self, change):
        self.change = change
        self.seen = []

    def __deepcopy__(self, memo):
        return self  # so that a test can look at it

    def __call__(self, outputs, rows):
        self.seen.append((set(outputs), rows.explore, rows.agents))
        made = self.change(outputs)
        return outputs if made is None else made


def put(name, value):
    def change(outputs):
        outputs[name][...] = value

    return change


def make(connectors, space=None, env=None, **options):
    env = Overheard(Acting) if env is None else env
    options = {"num_envs_per_env_runner": 2, "seed": 1, **options}
    env_config = {} if space is None else {"space": space}
    return env, fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=env, env_config=env_config, module_to_env_connector=connectors, **options)
    )


def sent_to(env):
    """By env, what agent_0 was sent."""
    return [[tick.sent["agent_0"] for tick in ticks if tick.sent] for ticks in env.envs]


def parts(runner, **options):
    return [part for episode in runner.sample(**options) for part in episode.agent_episodes.values()]


# Places.


@pytest.mark.parametrize("native", [True, False])
def test_connectors_see_the_outputs_of_earlier_pieces(native):
    early, middle, late = (Changed(lambda outputs: None) for _ in range(3))
    connectors = [early, GetActions(), middle, NormalizeAndClipActions(), late]
    _, runner = make(connectors, native_inference=native)
    runner.sample(num_timesteps=6)
    runner.sample(num_timesteps=6, explore=False)
    logits = {"action_dist_inputs", "vf_preds"}
    for connector, more in ((early, set()), (middle, {"actions"}), (late, {"actions", "actions_for_env"})):
        names = [seen for seen, _, _ in connector.seen]
        drawn = {"action_logp"} if more else set()
        assert names[0] == logits | more | drawn and names[-1] == logits | more
        assert [explore for _, explore, _ in connector.seen] == [True] * 3 + [False] * 3
        assert connector.seen[0][2] == [(env, agent) for env in (0, 1) for agent in ("agent_0", "agent_1")]


@pytest.mark.parametrize("connectors", [[GetActions, NormalizeAndClipActions], [], [GetActions()]])
def test_places_alone_change_nothing(connectors):
    want, got = make(None)[1], make(connectors)[1]
    taken, wanted = ([part.get_actions() for part in parts(each, num_timesteps=30)] for each in (got, want))
    assert_same(taken, wanted)


@pytest.mark.parametrize("places", [[GetActions()], [GetActions, NormalizeAndClipActions]])
@pytest.mark.parametrize("native", [True, False])
def test_logits_are_changed_before_actions_are_drawn(places, native):
    env, runner = make([Changed(put("action_dist_inputs", [0, 50, 0])), *places], native_inference=native)
    for part in parts(runner, num_timesteps=30):
        assert (part.get_actions() == 1).all()
        assert (part.get_extra_model_outputs("action_dist_inputs") == [0, 50, 0]).all()
        np.testing.assert_allclose(part.get_extra_model_outputs("action_logp"), 0, atol=1e-6)
    assert {action for actions in sent_to(env) for action in actions} == {1}


def test_draws_are_of_the_changed_logits():
    """The log-probability on record is the one of the logits on record, which keep their dtype."""
    double = Changed(lambda outputs: {**outputs, "action_dist_inputs": np.float64(2) * outputs["action_dist_inputs"]})
    _, runner = make([double, GetActions])
    for part in parts(runner, num_timesteps=40):
        logits = torch.from_numpy(part.get_extra_model_outputs("action_dist_inputs"))
        want = torch.distributions.Categorical(logits=logits).log_prob(torch.from_numpy(part.get_actions()))
        np.testing.assert_allclose(part.get_extra_model_outputs("action_logp"), want, atol=1e-5)
        assert logits.dtype == torch.float32


@pytest.mark.parametrize("place", ["actions", "actions_for_env"])
@pytest.mark.parametrize("normalize", [True, False])
def test_actions_are_changed_on_record_or_for_the_env_alone(place, normalize):
    connector = Changed(put(place, np.float32([0.5, 0.5])))
    end = [connector, NormalizeAndClipActions] if place == "actions" else [NormalizeAndClipActions, connector]
    env, runner = make(end, BOX, normalize_actions=normalize)
    half = np.float32([7.5, 2] if normalize and place == "actions" else [0.5, 0.5])
    for part in parts(runner, num_timesteps=30):
        assert (part.get_actions() == 0.5).all() == (place == "actions")
        columns = part.extra_model_outputs
        assert ("actions_for_env" in columns) == (place == "actions_for_env")
        if place == "actions_for_env":
            assert (part.get_extra_model_outputs("actions_for_env") == half).all()
    assert all((action == half).all() for actions in sent_to(env) for action in actions)


def test_nested_actions_come_nested():
    def change(outputs):
        assert outputs["actions"]["go"].shape == (4,) and outputs["actions"]["by"][0].shape == (4, 2)
        outputs["actions"]["go"][:] = 2
        outputs["actions_for_env"]["by"][0][:] = 3
        return outputs

    env, runner = make([NormalizeAndClipActions, Changed(change)], NESTED)
    for part in parts(runner, num_timesteps=8):
        assert (part.get_actions()["go"] == 2).all()
    sent = [action for actions in sent_to(env) for action in actions]
    assert all((action["by"][0] == 3).all() for action in sent)
    assert {action["go"] for action in sent} > {5}  # as drawn: what is changed last is on record alone


def test_a_module_may_choose_itself():
    seen = Changed(put("actions", 2))
    _, runner = make([seen, GetActions], policies={"default_policy": Says(actions=1)})
    assert all((part.get_actions() == 2).all() for part in parts(runner, num_timesteps=8))
    assert seen.seen[0][0] == {"actions"}


def test_random_actions_go_past_them():
    connector = Changed(put("actions_for_env", 1))
    env, runner = make([NormalizeAndClipActions, connector])
    for part in parts(runner, num_timesteps=40, random_actions=True):
        assert_same(part.get_actions(), part.get_extra_model_outputs("actions_for_env"))
    assert not connector.seen
    runner.sample(num_timesteps=4)
    assert {action for actions in sent_to(env) for action in actions[:20]} == {0, 1, 2}


def test_each_module_has_its_own():
    mapping = {"policies": ["a", "b"], "policy_mapping_fn": lambda agent, episode: "ab"[agent == "agent_1"]}
    connectors = {"b": Changed(put("actions", 2))}
    _, runner = make(connectors, **mapping)
    for episode in runner.sample(num_timesteps=40):
        assert (episode.agent_episodes["agent_1"].get_actions() == 2).all()
        assert (episode.agent_episodes["agent_0"].get_actions() != 2).any()
    runner.add_module("c")
    runner.remove_module("b", new_agent_to_module_mapping_fn=lambda agent, episode: "c")
    assert runner.config.module_to_env_connector == {}
    with pytest.raises(ConfigError, match=r"module_to_env_connector has unknown module ids \['d'\]"):
        make({"d": connectors["b"]}, **mapping)


# What goes on.


class Sticky(ModuleToEnvConnector):
    """Repeats the agent's last action in every second of its steps."""

    per_agent_state = ("last_L", "count_L")

    def __init__(self):
        self.last_L = self.count_L = np.zeros(0, np.int64)
        self.n_repeated = 0

    def __call__(self, outputs, rows):
        missing = rows.n_lanes - len(self.last_L)
        if missing > 0:
            self.last_L, self.count_L = (
                np.append(each, np.zeros(missing, int)) for each in (self.last_L, self.count_L)
            )
        self.count_L[rows.lanes] = np.where(rows.is_first, 0, self.count_L[rows.lanes] + 1)
        repeats = self.count_L[rows.lanes] % 2 == 1
        outputs["actions"][repeats] = self.last_L[rows.lanes][repeats]
        self.last_L[rows.lanes] = outputs["actions"]
        self.n_repeated += int(repeats.sum())
        return outputs

    def get_state(self):
        return {"n_repeated": self.n_repeated}

    def set_state(self, state):
        self.n_repeated = state["n_repeated"]

    def merge_states(self, states):
        return {"n_repeated": sum(state["n_repeated"] for state in states)}


STICKY = [Sticky()]


def test_its_memory_goes_on_across_calls_and_in_another_runner():
    env = "fastmarl.simple_spread"
    whole, one, other = (make(STICKY, env=env, seed=3)[1] for _ in range(3))
    want = [part.get_actions() for part in parts(whole, num_timesteps=62)]
    first = parts(one, num_timesteps=22)
    other.set_state(one.get_state())
    rest = parts(other, num_timesteps=40)
    for i, actions in enumerate(want[:6]):
        got = np.concatenate([first[i].get_actions(), rest[i].get_actions()])
        assert got.tolist()[: len(actions)] == actions.tolist()
        assert (actions[1::2] == actions[: 2 * len(actions[1::2]) : 2]).all()


def test_its_state_is_the_runners(tmp_path):
    runner, other = make(STICKY)[1], make(STICKY)[1]
    runner.sample(num_timesteps=20)
    name = "module_to_env_connector"
    state = {"default_policy": {"Sticky": {"n_repeated": 16}}}
    assert runner.get_state()[name] == runner.module_to_env.get_state() == state
    assert runner.get_state()["env_to_module_connector"] == {}
    runner.evaluate(num_episodes=4)
    assert runner.module_to_env.get_state() == state
    other.restore_from_path(runner.save_to_path(tmp_path))
    assert other.module_to_env.get_state() == state
    merged = runner.module_to_env.merge_states([state, state])
    other.set_state({name: merged})
    assert other.module_to_env.get_state()["default_policy"]["Sticky"] == {"n_repeated": 32}
    with pytest.raises(ConfigError, match="'default_policy/Another'"):
        runner.set_state({name: {"default_policy": {"Another": {}}}})


def test_a_policy_acts_through_them(tmp_path):
    connectors = [Sticky(), NormalizeAndClipActions()]
    env, runner = make(connectors, env_to_module_connector=MeanStdFilter(), num_envs_per_env_runner=1)
    runner.sample(num_timesteps=20)
    policy = fastmarl.Policy.from_runner(runner)
    path = runner.save_to_path(tmp_path)
    with pytest.raises(CheckpointError, match=r"\['Sticky'\] are not part of fastmarl"):
        fastmarl.Policy.from_checkpoint(path)
    saved = fastmarl.Policy.from_checkpoint(path, connectors={"default_policy": [MeanStdFilter(), *connectors]})
    env.clear()
    runner.evaluate(num_episodes=2)
    for ticks in env.envs:
        for each in (policy, saved):
            for tick in ticks:
                if tick.is_reset:
                    each.reset()
                if tick.sent:
                    assert {agent: each.act(obs, agent_id=agent) for agent, obs in tick.obs.items()} == tick.sent


class RewardsActions(CountingEnv):
    def __init__(self, config):
        super().__init__()

    def rewards_at(self, env_t):
        return self.actions

    def step(self, actions):
        self.actions = {agent: float(action) for agent, action in actions.items()}
        return super().step(actions)


def test_they_come_with_a_player():
    players = {name: make(Changed(put("actions", i)), env=RewardsActions)[1] for i, name in enumerate(["no", "one"])}
    result = fastmarl.tournament(players, RewardsActions, episodes=4)
    assert result.payoffs.tolist() == (10 * result.players).tolist()
    with pytest.raises(ConfigError, match="sets module_to_env_connector itself"):
        fastmarl.tournament(players, RewardsActions, module_to_env_connector=[])


def test_actions_sent_to_envs_are_recorded_and_replayed(tmp_path):
    connectors = [NormalizeAndClipActions, Changed(lambda outputs: put("actions_for_env", 1)(outputs))]
    env = "fastmarl.simple_spread"
    _, runner = make(connectors, env=env, record_actions=tmp_path)
    episodes = [*runner.sample(num_episodes=2), *runner.sample(num_timesteps=10, random_actions=True)]
    runner.stop()
    for episode in episodes[:2]:
        replayed = fastmarl.replay(tmp_path, episode.id_)
        for agent, part in episode.agent_episodes.items():
            np.testing.assert_array_equal(replayed.agent_episodes[agent].get_observations(), part.get_observations())


@pytest.mark.parametrize("connectors", [None, [NormalizeAndClipActions, Changed(lambda outputs: None)]])
def test_a_module_may_have_an_output_of_that_name(connectors, tmp_path):
    module = Says(actions=lambda obs: torch.arange(len(obs)) % 3, actions_for_env=7)
    options = {"env": "fastmarl.simple_spread", "policies": {"default_policy": module}}
    _, runner = make(connectors, record_actions=tmp_path, **options)
    episodes = runner.sample(num_episodes=2)
    runner.stop()
    for episode in episodes:
        replayed = fastmarl.replay(tmp_path, episode.id_)
        for agent, part in episode.agent_episodes.items():
            np.testing.assert_array_equal(replayed.agent_episodes[agent].get_observations(), part.get_observations())
            own = part.get_extra_model_outputs("actions_for_env")
            assert own.tolist() == (part.get_actions().tolist() if connectors else [7] * len(part))


# What is refused.


@pytest.mark.parametrize(
    ("connectors", "problem"),
    [
        ([NormalizeAndClipActions, GetActions], "may each occur once, in this order"),
        ([GetActions, GetActions], "may each occur once, in this order"),
        (MeanStdFilter(), "module_to_env_connector of module 'default_policy': expected .*ModuleToEnvConnector, got"),
        (Sticky, r"pass an instance: Sticky\(\)"),
    ],
)
def test_impossible_connectors(connectors, problem):
    with pytest.raises(ConfigError, match=problem):
        make(connectors)


def test_the_other_sides_connectors():
    with pytest.raises(
        ConfigError, match=r"env_to_module_connector of .*: expected .*connectors.EnvToModuleConnector, got"
    ):
        make(None, env_to_module_connector=Sticky())


def cut(outputs):
    outputs["vf_preds"] = outputs["vf_preds"][1:]


@pytest.mark.parametrize(
    ("place", "change", "problem"),
    [
        (0, lambda outputs: 3, "expected a dict of outputs, got 3"),
        (0, cut, "'vf_preds' to be a numeric array with 4 rows"),
        (0, put("action_dist_inputs", np.nan), "expected numbers in output 'action_dist_inputs', got NaN"),
        (0, lambda outputs: {"vf_preds": outputs["vf_preds"]}, "3 'action_dist_inputs' per row"),
        (1, lambda outputs: {**outputs, "actions": ["go"] * 4}, "'actions', 0"),
        (2, lambda outputs: {**outputs, "actions_for_env": np.full(4, 0.5)}, "expected actions_for_env of shape"),
        (2, lambda outputs: {"actions": outputs["actions"]}, "got only outputs"),
    ],
)
def test_impossible_outputs(place, change, problem):
    order = [GetActions, NormalizeAndClipActions]
    order.insert(place, Changed(change))
    _, runner = make(order)
    kind = ConnectorError if "per row" not in problem else fastmarl.errors.ModuleOutputError
    with pytest.raises(kind, match=problem) as error:
        runner.sample(num_timesteps=4)
    assert "default_policy" in str(error.value)
