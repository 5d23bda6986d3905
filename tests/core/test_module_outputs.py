"""Module outputs that give no actions: NaN, infinity, too many or too few logits; and errors of modules."""

import re

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from support.scripted import counting, scripted
from support.tape import TapeCapture

import fastmarl
from fastmarl.core.native._finite import first_unfit
from fastmarl.core.nets.forward_errors import describe_failure
from fastmarl.core.nets.graphs import TickGraphs
from fastmarl.distributions import Categorical, DiagGaussian, get_action_dist_cls, num_dist_inputs
from fastmarl.errors import ConfigError, ModuleOutputError
from fastmarl.modules import DefaultRLModule, RLModule
from fastmarl.runner.loop import building

LEAST, MOST = np.finfo(np.float32).min, np.finfo(np.float32).max
REAL = Box(-1, 1, (2,), np.float32)


class Saying(RLModule):
    """Its outputs are those of the option "says", the same for every row."""

    capturable = True

    def setup(self):
        self.spoken = {name: torch.nn.Buffer(torch.as_tensor(value)) for name, value in self.model_config.items()}

    def _forward(self, batch, **kwargs):
        n = len(batch["obs"])
        return {name: value.expand(n, *value.shape).clone() for name, value in self.spoken.items()}


def make_runner(action_space, module_class=Saying, says=None, mask=None, **options):
    info = {} if mask is None else {"action_mask": np.array(mask)}
    env = scripted(counting(2, 5, info), action_space=action_space)
    spec = fastmarl.RLModuleSpec(module_class=module_class, model_config=says)
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, rl_module_spec=spec, seed=1, **options))


@pytest.fixture(params=["called", "captured"])
def make(request, monkeypatch):
    if request.param == "captured":
        monkeypatch.setattr(building, "make_tick_graphs", lambda device, generator: TickGraphs(TapeCapture()))
    return make_runner


# How many logits.


MIXED = Dict(a=Discrete(2), b=Tuple((REAL, MultiDiscrete([2, 3]))))


@pytest.mark.parametrize(
    ("action_space", "right"),
    [(Discrete(5), 5), (MultiDiscrete([2, 3]), 5), (REAL, 4), (MultiBinary(3), 3), (MIXED, 11),
     (Box(-1, 1, (), np.float32), 2), (MultiDiscrete([[2], [3]]), 5)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("explore", [True, False])
def test_a_wrong_number_of_logits_is_an_error(make, action_space, right, explore):
    for n in (0, right - 1, right + 1):
        runner = make(action_space, says={"action_dist_inputs": np.zeros(n, np.float32)})
        with pytest.raises(ModuleOutputError) as error:
            runner.sample(num_timesteps=2, explore=explore)
        assert f"module 'default_policy': expected {right} 'action_dist_inputs' per row" in str(error.value)
        assert str(action_space) in str(error.value) and f", {n})" in str(error.value)
    assert make(action_space, says={"action_dist_inputs": np.zeros(right, np.float32)}).sample(num_timesteps=2)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("n", [2, 4])
def test_a_wrong_number_of_masked_logits_is_an_error(n, native):
    class Wrong(DefaultRLModule):
        def setup(self):
            super().setup()
            self.pi = torch.nn.Linear(256, n)

    options = {"mask": [0, 1, 1], "native_inference": native}
    for module_class, says in ((Wrong, None), (Saying, {"action_dist_inputs": np.zeros(n, np.float32)})):
        with pytest.raises(ModuleOutputError, match=rf"expected 3 'action_dist_inputs' .* got shape \(2, {n}\)"):
            make_runner(Discrete(3), module_class, says, **options).sample(num_timesteps=4)


def test_logits_with_another_axis_or_none_are_an_error():
    for value in (np.zeros((1, 5), np.float32), np.float32(0)):
        with pytest.raises(ModuleOutputError, match=r"shape \[n, 5\], for Discrete\(5\), got shape"):
            make_runner(Discrete(5), says={"action_dist_inputs": value}).sample(num_timesteps=1)


def test_modules_that_choose_actions_may_have_any_logits():
    says = {"action_dist_inputs": np.zeros(9, np.float32), "actions": np.int64(1)}
    assert make_runner(Discrete(5), says=says).sample(num_timesteps=2)


def test_a_distribution_of_ones_own_may_need_another_number():
    class Tempered(Categorical):
        """The last logit is a temperature."""

        @classmethod
        def from_logits(cls, logits):
            return cls(logits[:, :-1] * logits[:, -1:].exp())

    class Free(DiagGaussian):
        @staticmethod
        def required_input_dim(action_space):
            return 7

    assert num_dist_inputs(Tempered, Discrete(5)) is None
    assert num_dist_inputs(Free, REAL) == 7
    assert num_dist_inputs(get_action_dist_cls(MIXED), MIXED) == 11


# NaN and infinity.


def with_bad(n, place, bad):
    logits = np.linspace(-1, 1, n, dtype=np.float32)
    logits[place] = bad
    return {"action_dist_inputs": logits}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("action_space", "n"), [(Discrete(5), 5), (MultiDiscrete([2, 3]), 5), (REAL, 4), (MultiBinary(3), 3), (MIXED, 11)],
    ids=str,
)  # fmt: skip
def test_logits_of_nan_or_infinity_are_an_error(make, action_space, n, bad, explore):
    for place in range(n):
        runner = make(action_space, says=with_bad(n, place, bad))
        with pytest.raises(ModuleOutputError, match=r"module 'default_policy': row 0 of its batch, env 0, .*NaN"):
            runner.sample(num_timesteps=2, explore=explore)


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("free_log_std", [True, False])
def test_means_of_nan_or_infinity_are_an_error(explore, native, bad, free_log_std):
    runner = make_runner(REAL, None, {"free_log_std": free_log_std}, native_inference=native)
    assert runner.inference_backends["default_policy"].startswith("native" if native else "torch")
    assert runner.sample(num_timesteps=2, explore=explore)
    head = runner.module["default_policy"].pi
    bias = (head[0] if free_log_std else head).bias
    with torch.no_grad():
        bias[0] = bad
    with pytest.raises(ModuleOutputError, match="NaN or inf"):
        runner.sample(num_timesteps=2, explore=explore)


@pytest.mark.parametrize("explore", [True, False])
def test_minus_infinity_rules_a_choice_out(make, explore):
    chunks = make(Discrete(5), says=with_bad(5, 4, -np.inf)).sample(num_timesteps=20, explore=explore)
    for chunk in chunks:
        for agent in chunk.agent_episodes.values():
            assert (agent.get_actions() < 4).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("explore", [True, False])
def test_a_modules_own_actions_of_nan_or_infinity_are_an_error(make, bad, explore):
    runner = make(REAL, says={"actions": np.array([0, bad], np.float32)})
    with pytest.raises(ModuleOutputError, match=r"NaN or inf in its action: .* check its weights and inputs"):
        runner.sample(num_timesteps=2, explore=explore)


def test_a_part_of_a_modules_own_actions_of_nan_is_an_error(make):
    class Nested(Saying):
        def _forward(self, batch, **kwargs):
            said = super()._forward(batch)
            return {"actions": {"a": said["a"], "b": (said["real"], said["choices"])}}

    says = {"a": np.int64(1), "real": np.array([0, np.nan], np.float32), "choices": np.array([1, 2])}
    with pytest.raises(ModuleOutputError, match="has NaN or inf in its action"):
        make(MIXED, Nested, says).sample(num_timesteps=2)


def test_an_overflowing_deviation_is_an_error():
    says = {"action_dist_inputs": np.array([0, 0, 1e3, 1e3], np.float32)}
    with pytest.raises(ModuleOutputError, match="NaN or inf in its action"):
        make_runner(REAL, says=says).sample(num_timesteps=2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_the_first_unfit_row_is_found(rng, dtype):
    for shape in ((7,), (7, 3), (7, 2, 20)):
        values = rng.normal(size=shape).astype(dtype)
        assert first_unfit(values, LEAST, MOST) == -1
        for row in range(7):
            for bad in (np.nan, np.inf, -np.inf):
                spoiled = values.copy()
                spoiled[row].reshape(-1)[-1:] = bad
                if len(shape) == 1:
                    spoiled[row] = bad
                spoiled[row + 1 :] = bad
                for least, most in ((LEAST, MOST), (-np.inf, MOST), (-np.inf, np.inf)):
                    is_fit = least <= bad <= most
                    for array in (spoiled, np.stack([spoiled, spoiled], -1)[..., 0]):
                        assert first_unfit(array, least, most) == (-1 if is_fit else row)


def test_numbers_that_are_no_floats_are_fit():
    for values in (np.arange(3), np.zeros(0, np.float32), np.zeros((0, 3)), np.zeros((3, 0)), np.ones(2, bool)):
        assert first_unfit(values, LEAST, MOST) == -1


OUT = -np.inf
NO_CHOICE = [
    (Discrete(3), [OUT] * 3),
    (MultiDiscrete([2, 3]), [0, 1, OUT, OUT, OUT]),
    (MultiDiscrete([2, 3]), [OUT, OUT, 0, 1, 2]),
    (MIXED, [OUT, OUT, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    (MIXED, [0, 0, 0, 0, 0, 0, 1, OUT, OUT, OUT, OUT]),
]


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(("action_space", "logits"), NO_CHOICE, ids=str)
def test_logits_that_leave_no_choice_are_an_error(make, action_space, logits, explore):
    runner = make(action_space, says={"action_dist_inputs": np.array(logits, np.float32)})
    with pytest.raises(ModuleOutputError, match="row 0 of its batch, env 0, agent 'agent_0', env step 0, has -inf as"):
        runner.sample(num_timesteps=2, explore=explore)


class Once(Saying):
    """Leaves no choice to the fourth of those who act, at its third step."""

    def _forward(self, batch, **kwargs):
        is_it = (batch["obs"][:, 0] == 2) & (torch.arange(len(batch["obs"])) == 3)
        return {"action_dist_inputs": torch.where(is_it[:, None], OUT, torch.zeros(1, 3))}


@pytest.mark.parametrize("explore", [True, False])
def test_errors_of_agents_without_a_choice_name_env_agent_and_step(make, explore):
    runner = make(Discrete(3), Once, num_envs_per_env_runner=2)
    with pytest.raises(ModuleOutputError, match="env 1, agent 'agent_1', env step 2, has -inf as"):
        runner.sample(num_timesteps=8, explore=explore)


@pytest.mark.parametrize("explore", [True, False])
def test_choices_that_the_env_rules_out_are_none(make, explore):
    says = {"action_dist_inputs": np.array([0, OUT, OUT], np.float32)}
    runner = make(Discrete(3), says=says, mask=[0, 1, 1])
    with pytest.raises(ModuleOutputError, match="env step 1, has -inf as"):
        runner.sample(num_timesteps=4, explore=explore)
    assert make(Discrete(3), says=says, mask=[1, 1, 0]).sample(num_timesteps=4)


def test_modules_that_choose_actions_need_no_finite_logits(make):
    says = {"action_dist_inputs": np.full(3, OUT, np.float32), "actions": np.int64(2)}
    (chunk,) = make(Discrete(3), says=says).sample(num_timesteps=2, explore=False)
    assert chunk.agent_episodes["agent_0"].get_actions().tolist() == [2, 2]


# Errors of their own


class Failing(RLModule):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": batch["obs"] @ torch.zeros(3, 5)}


class Forgetful(RLModule):
    """Reads a state, and has no get_initial_state()."""

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": batch["state_in"]["h"]}


@pytest.mark.parametrize("inference_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("explore", [True, False])
def test_errors_in_a_forward_pass_name_module_and_shapes(explore, inference_dtype):
    runner = make_runner(Discrete(5), Failing, num_envs_per_env_runner=3, inference_dtype=inference_dtype)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
        runner.sample(num_timesteps=3, explore=explore)
    method = "forward_exploration" if explore else "forward_inference"
    assert raised.value.__notes__ == [
        f"in {method}() of module 'default_policy', with a batch of obs [6, 4] of float32"
    ]


def test_a_note_describes_nested_and_many_observations():
    batch = {"obs": {"a": torch.zeros(2, 1), "words": np.array(["x", "y"], object)}, "state_in": {"h": torch.zeros(2)}}
    error = RuntimeError("no")
    describe_failure(error, "p", batch, explore=False, has_memory=True)
    (note,) = error.__notes__
    assert note.endswith(
        "a batch of obs['a'] [2, 1] of float32, obs['words'] [2] of object, state_in['h'] [2] of float32"
    )
    error = RuntimeError("no")
    describe_failure(error, "p", {"obs": [torch.zeros(1)] * 20}, explore=False, has_memory=True)
    assert error.__notes__[0].endswith("obs[15] [1] of float32 and 4 more")


def test_a_recurrent_module_needs_an_initial_state():
    runner = make_runner(Discrete(5), Forgetful)
    with pytest.raises(ConfigError, match=r"'default_policy' reads batch\['state_in'\] .* get_initial_state\(\) that"):
        runner.sample(num_timesteps=3)


# The time axis of modules with memory.


class Remembering(RLModule):
    """Counts its steps; without the time axis in the output that "flat" names."""

    def setup(self):
        self.scale = torch.nn.Parameter(torch.ones(1))

    def get_initial_state(self):
        return {"n": np.zeros(1, np.float32)}

    def _forward(self, batch, **kwargs):
        b, t = batch["obs"].shape[:2]
        outputs = {"action_dist_inputs": self.scale * torch.zeros(b, t, 5), "vf_preds": torch.zeros(b, t)}
        flat = self.model_config["flat"]
        outputs |= {flat: outputs[flat][:, 0]} if flat else {}
        return {**outputs, "state_out": {"n": batch["state_in"]["n"] + t}}


@pytest.mark.parametrize(("flat", "shape"), [("action_dist_inputs", "(2, 5)"), ("vf_preds", "(2,)")])
def test_an_output_without_the_time_axis_is_an_error(flat, shape):
    runner = make_runner(Discrete(5), Remembering, {"flat": flat})
    expected = f"expected output {flat!r} of shape [B, T, ...] with T=1, got shape {shape}; a module with memory"
    with pytest.raises(ModuleOutputError, match=re.escape(expected)):
        runner.sample(num_timesteps=3)


def test_with_the_time_axis_it_is_none():
    assert make_runner(Discrete(5), Remembering, {"flat": None}).sample(num_timesteps=3)
