"""Runners whose modules are captured, by a tape in place of CUDA graphs, against runners that call them."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import Scripted, counting, scripted, sine, sines
from support.tape import TapeCapture
from torch import nn

import fastmarl
from fastmarl.core.inference.masks import ActionMasks
from fastmarl.core.nets.graph_guard import outline, why_not_capturable
from fastmarl.core.nets.graphs import TickGraphs
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.errors import ModuleOutputError
from fastmarl.modules import DefaultRLModule, RLModule
from fastmarl.runner.loop import building
from fastmarl.testing import DyingAgentsEnv

BOX = gym.spaces.Box(-9, 9, (5,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
MASKED = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observation=gym.spaces.Box(-9, 9, (4,), np.float32))


MASK = np.array([0, 1, 1], np.int8)


def masked_sine(agent, t):
    return {"action_mask": MASK, "observation": sine(agent, t)}


MASKED_IN = {
    "": sines(),
    "infos": sines({"action_mask": MASK}),
    "obs": scripted(counting(3, 7), see=masked_sine, space=MASKED),
}


class Capturing:
    """Makes runners that capture."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.capture = TapeCapture()

    def runner(self, **options):
        with self._monkeypatch.context() as patched:
            patched.setattr(building, "make_tick_graphs", lambda device, generator: TickGraphs(self.capture))
            return make_runner(**options)


@pytest.fixture
def capturing(monkeypatch):
    return Capturing(monkeypatch)


def make_runner(**options):
    defaults = {
        "env": MASKED_IN[""],
        "model_config": {"fcnet_hiddens": [8, 8]},
        "num_envs_per_env_runner": 4,
        "seed": 1,
        "native_inference": False,
    }
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **options}))


def recorded(chunks):
    """(episode's number, agent) -> columns."""
    columns = {}
    for i, chunk in enumerate(chunks):
        for agent, part in chunk.agent_episodes.items():
            columns[i, agent] = {
                "obs": part.get_observations(),
                "actions": part.get_actions(),
                **{key: part.get_extra_model_outputs(key) for key in part.extra_model_output_keys},
            }
    return columns


def assert_same(got, expected):
    got, expected = recorded(got), recorded(expected)
    assert got.keys() == expected.keys()
    for key, columns in expected.items():
        assert got[key].keys() == columns.keys()
        for name, column in columns.items():
            theirs = flatten_struct(column)
            for (path, leaf), (_, own) in zip(theirs, flatten_struct(got[key][name]), strict=True):
                np.testing.assert_allclose(own, leaf, rtol=1e-5, atol=1e-6, err_msg=f"{key} {name} {path}")
                assert np.asarray(own).dtype == np.asarray(leaf).dtype


LSTM = {"model_config": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}}
TWO = {
    "policies": ["a", "b"],
    "policy_mapping_fn": lambda agent, episode: "a" if agent.endswith("0") else "b",
}


CASES = {
    "plain": {},
    "two": TWO,
    "masks in infos": {"env": MASKED_IN["infos"]},
    "masks in observations": {"env": MASKED_IN["obs"]},
    "box": {"env": sines(action_space=gym.spaces.Box(-1, 1, (2,), np.float32))},
    "tuple": {"env": sines(action_space=gym.spaces.Tuple((DISCRETE, gym.spaces.MultiDiscrete([3, 2]))))},
    "lstm": LSTM,
    "stacked": {"env_to_module_connector": fastmarl.connectors.FrameStacking(num_frames=2)},
    "dying": {
        "env": lambda _: DyingAgentsEnv({f"{i}": [(i % 4, 9 - i)] for i in range(9)}),
        "policies": ["a", "b"],
        "policy_mapping_fn": lambda agent, episode: "ab"[int(agent) % 2],
        "num_envs_per_env_runner": 7,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_captured_modules_act_as_called_ones(capturing, case):
    options = CASES[case]
    captured, called = capturing.runner(**options), make_runner(**options)
    for n in (200, 90):
        assert_same(captured.sample(num_timesteps=n, explore=False), called.sample(num_timesteps=n, explore=False))
    assert set(captured.inference_backends.values()) <= {
        f"cuda graph, {n} batch size{'s' * (n > 1)}" for n in (1, 2, 3)
    }
    assert capturing.capture.n_replays > capturing.capture.n_captures


@pytest.mark.parametrize("case", ["two", "masks in infos", "lstm"])
def test_exploring_it_draws_by_its_own_logits(capturing, case):
    runner = capturing.runner(**CASES[case])
    actions = []
    for columns in recorded(runner.sample(num_timesteps=200)).values():
        logp = torch.log_softmax(torch.from_numpy(columns["action_dist_inputs"]), -1)
        chosen = logp.gather(-1, torch.from_numpy(columns["actions"])[:, None])[:, 0]
        np.testing.assert_allclose(columns["action_logp"], chosen, rtol=1e-5, atol=1e-6)
        actions += columns["actions"].tolist()
    assert set(actions) == {0, 1, 2}


def test_a_seed_gives_the_same_actions(monkeypatch):
    first, second = (recorded(Capturing(monkeypatch).runner(**TWO).sample(num_timesteps=50)) for _ in range(2))
    for key in first:
        np.testing.assert_array_equal(first[key]["actions"], second[key]["actions"])


def test_random_actions_launch_nothing(capturing):
    runner = capturing.runner()
    runner.sample(num_timesteps=20, random_actions=True)
    assert capturing.capture.n_captures == 0
    assert runner.inference_backends == {"default_policy": "cuda graph, 0 batch sizes"}


# Weights.


def logits_of(runner):
    (chunk, *_) = runner.sample(num_timesteps=4, force_reset=True, explore=False)
    return np.concatenate(
        [part.get_extra_model_outputs("action_dist_inputs") for part in chunk.agent_episodes.values()]
    )


class Elu(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk = nn.Sequential(nn.Linear(self.observation_space.shape[0], 8), nn.ELU())
        self.pi = nn.Sequential(nn.Linear(8, 3))
        self.vf = nn.Linear(8, 1)


def train(runner):
    module = runner.module["default_policy"]
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    sum(output.square().sum() for output in module({"obs": torch.randn(4, 4)}).values()).backward()
    optimizer.step()


def set_state(runner):
    runner.set_state(make_runner(seed=5, rl_module_spec=runner.config.rl_module_spec).get_state("rl_module"))


def replace_parameter(runner):
    layer = runner.module["default_policy"].pi[0]
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def replace_data(runner):
    for parameter in runner.module.parameters():
        parameter.data = torch.randn_like(parameter)


def replace_layer(runner):
    runner.module["default_policy"].trunk[1] = nn.ReLU()


def change_a_slope(runner):
    runner.module["default_policy"].trunk[1].alpha = 3.0


@pytest.mark.parametrize(
    ("change", "in_place"),
    [
        (train, True),
        (set_state, True),
        (replace_parameter, False),
        (replace_data, False),
        (replace_layer, False),
        (change_a_slope, False),
    ],
)
def test_changed_weights_act_at_once(capturing, change, in_place):
    options = {"rl_module_spec": fastmarl.RLModuleSpec(module_class=Elu)}
    captured, called = capturing.runner(**options), make_runner(**options)
    before = logits_of(captured)
    n_captures = capturing.capture.n_captures
    for runner in (captured, called):
        torch.manual_seed(3)
        change(runner)
    np.testing.assert_allclose(logits_of(captured), logits_of(called), rtol=1e-5, atol=1e-6)
    assert not np.allclose(logits_of(captured), before)
    assert capturing.capture.n_captures == (n_captures if in_place else 2 * n_captures)


class ReplaceInTheMiddle:
    def on_episode_step(self, *, episode, rl_module, **kwargs):
        if episode.env_t == 3:
            for parameter in rl_module.parameters():
                parameter.data = torch.zeros_like(parameter)


def test_a_callback_that_replaces_weights_is_noticed(capturing):
    runner = capturing.runner(num_envs_per_env_runner=1, callbacks_class=ReplaceInTheMiddle)
    (chunk,) = runner.sample(num_timesteps=6)
    logits = chunk.agent_episodes["agent_0"].get_extra_model_outputs("action_dist_inputs")
    assert logits[:3].any(1).all() and not logits[3:].any()


def test_an_env_that_replaces_weights_is_noticed(capturing, monkeypatch):
    class ReplacesWeights(Scripted):
        """Does so in its fourth step."""

        module = None

        def step(self, actions):
            if self.t == 3:
                for parameter in self.module.parameters():
                    parameter.data = torch.zeros_like(parameter)
            return super().step(actions)

    runner = capturing.runner(num_envs_per_env_runner=1, env=lambda config: ReplacesWeights(counting(3, 7), see=sine))
    monkeypatch.setattr(ReplacesWeights, "module", runner.module)
    (chunk,) = runner.sample(num_timesteps=6)
    logits = chunk.agent_episodes["agent_0"].get_extra_model_outputs("action_dist_inputs")
    assert logits[:4].any(1).all() and not logits[4:].any()


def test_modules_that_come_and_go(capturing):
    captured, called = capturing.runner(**TWO), make_runner(**TWO)
    for runner in (captured, called):
        runner.sample(num_timesteps=10, explore=False)
        runner.add_module("c", new_agent_to_module_mapping_fn=lambda agent, episode: "c")
    assert_same(captured.sample(num_timesteps=60, explore=False), called.sample(num_timesteps=60, explore=False))
    for runner in (captured, called):
        runner.remove_module("a")
    assert_same(captured.sample(num_timesteps=60, explore=False), called.sample(num_timesteps=60, explore=False))


# Modules that are not captured.


class OwnForward(DefaultRLModule):
    def _forward(self, batch, **kwargs):
        return super()._forward(batch)


class SaysSo(OwnForward):
    capturable = True


class BelowSaysSo(SaysSo):
    def forward_exploration(self, batch, t=None, **kwargs):
        assert t is not None
        return super().forward_exploration(batch, t=t)


class Foreign(RLModule):
    pass


class OwnLayer(nn.Module):
    def forward(self, inputs):
        return inputs.tanh()


class WithOwnLayer(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk = nn.Sequential(self.trunk, OwnLayer())


class SaysSoOfItsLayers(WithOwnLayer):
    capturable = True


def hooked():
    module = DefaultRLModule(BOX, DISCRETE)
    module.pi.register_forward_hook(lambda *_: None)
    return module


def replaced():
    module = DefaultRLModule(BOX, DISCRETE)
    module.forward_exploration = module.forward_exploration
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: DefaultRLModule(BOX, DISCRETE), ""),
        (lambda: OwnForward(BOX, DISCRETE), "OwnForward overrides _forward()"),
        (lambda: SaysSo(BOX, DISCRETE), ""),
        (lambda: BelowSaysSo(BOX, DISCRETE), "BelowSaysSo overrides forward_exploration()"),
        (lambda: Foreign(BOX, DISCRETE), "Foreign does not set capturable=True"),
        (lambda: WithOwnLayer(BOX, DISCRETE), "layer OwnLayer"),
        (lambda: SaysSoOfItsLayers(BOX, DISCRETE), ""),
        (hooked, "has hooks"),
        (replaced, "overrides forward_exploration()"),
    ],
)
def test_which_modules_are_captured(make, reason):
    why = why_not_capturable(make())
    assert reason in why and bool(reason) == bool(why)


def test_modules_that_cannot_be_captured_act_along_with_captured_ones(capturing):
    options = {**TWO, "policies": {"a": fastmarl.RLModuleSpec(module_class=BelowSaysSo), "b": None}}
    captured, called = capturing.runner(**options), make_runner(**options)
    assert_same(captured.sample(num_timesteps=40, explore=False), called.sample(num_timesteps=40, explore=False))
    backends = captured.inference_backends
    assert backends["b"] == "cuda graph, 1 batch size"
    assert backends["a"].startswith("torch: BelowSaysSo overrides forward_exploration()")


class Peeking(DefaultRLModule):
    capturable = True

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        return outputs if outputs["vf_preds"].sum().item() < 1e9 else {}


def test_a_failed_capture_warns_once_and_all_modules_keep_acting(capturing):
    options = {**TWO, "policies": {"a": fastmarl.RLModuleSpec(module_class=Peeking), "b": None}}
    captured, called = capturing.runner(**options), make_runner(**options)
    with pytest.warns(RuntimeWarning, match="module 'a' cannot be captured") as warned:
        first = captured.sample(num_timesteps=40, explore=False)
    assert len(warned) == 1
    assert_same(first, called.sample(num_timesteps=40, explore=False))
    assert_same(captured.sample(num_timesteps=40, explore=False), called.sample(num_timesteps=40, explore=False))
    assert captured.inference_backends["a"].startswith("torch: it cannot be captured: operation not permitted")
    assert captured.inference_backends["b"] == "cuda graph, 1 batch size"


class Writing(DefaultRLModule):
    capturable = True

    def _forward(self, batch, **kwargs):
        batch["obs"] += 1
        return super()._forward(batch)


def test_an_error_in_a_launch_leaves_a_runner_that_can_go_on(capturing):
    options = {**TWO, "policies": {"a": fastmarl.RLModuleSpec(module_class=Writing), "b": None}}
    runner = capturing.runner(**options)
    with pytest.raises(ModuleOutputError, match=r"'a'.*modified its input batch"):
        runner.sample(num_timesteps=10)
    runner.add_module("a", override=True)
    assert runner.sample(num_timesteps=10)


class Failing(DefaultRLModule):
    def _forward(self, batch, **kwargs):
        raise ValueError("fails")


def test_launches_from_before_an_error_are_not_used_afterwards(capturing):
    options = {**TWO, "policies": {"a": fastmarl.RLModuleSpec(module_class=Failing), "b": None}}
    runner = capturing.runner(**options)
    with pytest.raises(ValueError, match="fails"):
        runner.sample(num_timesteps=4)
    failed = runner._sampling.rollout.policies
    assert failed.by_index[1].inference.launched is not None
    with pytest.raises(ValueError, match="fails"):
        runner.sample(num_timesteps=4)
    assert runner._sampling.rollout.policies is not failed


@pytest.mark.parametrize("masks", ["infos", "obs"])
def test_masks_are_found_once_a_tick(capturing, monkeypatch, masks):
    finds = []
    for name in ("_in_infos", "_from_observations"):
        find = getattr(ActionMasks, name)
        monkeypatch.setattr(ActionMasks, name, lambda *args, find=find: finds.append(args) or find(*args))
    runner = capturing.runner(env=MASKED_IN[masks])
    runner.sample(num_timesteps=4 * 20)
    assert len(finds) == 20


def test_masks_found_before_an_error_are_not_used_after(capturing, monkeypatch):
    runner = capturing.runner(env=MASKED_IN["infos"])
    runner.sample(num_timesteps=4 * 3)
    with monkeypatch.context() as patched:
        patched.setattr(TickGraphs, "launch", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runner.sample(num_timesteps=4)
    for chunk in runner.sample(num_timesteps=4 * 3):
        for part in chunk.agent_episodes.values():
            masks = part.get_extra_model_outputs("action_mask")
            assert masks.tolist() == [[True] * 3, *[[False, True, True]] * 2]  # no infos come with resets


def test_the_outline_ignores_new_weights_but_not_other_changes():
    module = Elu(BOX, DISCRETE)
    before = outline(module)
    module.eval()
    module.set_state(Elu(BOX, DISCRETE).get_state())
    assert outline(module) == before
    module.trunk[1].alpha = 0.5
    assert outline(module) != before
