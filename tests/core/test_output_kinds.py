"""Outputs of any kind are recorded, or refused by the name of module and output."""

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.errors import ModuleOutputError
from fastmarl.modules import RLModule

N_LOGITS = 5
BIG = np.dtype(np.float32).newbyteorder(">")


class Net(RLModule):
    """Says what `model_config` makes of float32 [n, 5], under its names; with memory, if it says "state_out"."""

    def setup(self):
        self.rows = torch.nn.Parameter(torch.arange(1.0, N_LOGITS + 1))

    def get_initial_state(self):
        return {"h": self.model_config["initial"]} if "initial" in self.model_config else {}

    def _forward(self, batch, **kwargs):
        n = len(batch["obs"])
        outputs = {"action_dist_inputs": torch.zeros(n, N_LOGITS)}
        outputs |= {
            name: make(self.rows.expand(n, N_LOGITS)) for name, make in self.model_config.items() if callable(make)
        }
        if not self.get_initial_state():
            return outputs
        state = outputs.pop("state_out")
        return {name: value[:, None] for name, value in outputs.items()} | {"state_out": {"h": state}}


def config_of(**says):
    spec = fastmarl.RLModuleSpec(module_class=Net, model_config=says)
    return fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", policies={"scout": spec}, seed=0)


def sampled(**says):
    with fastmarl.MultiAgentEnvRunner(config_of(**says)) as runner:
        return runner.sample(num_timesteps=5)[0].agent_episodes["agent_0"]


def numpy_of(rows):
    return rows.detach().numpy().copy()


PLAIN = np.arange(1, N_LOGITS + 1, dtype=np.float32)
RECORDED = {
    "view of a parameter": (lambda x: x, PLAIN),
    "needs gradients": (lambda x: torch.enable_grad()(lambda: x * 2)(), PLAIN * 2),
    "bfloat16": (lambda x: x.bfloat16(), PLAIN),
    "float8": (lambda x: x.to(torch.float8_e4m3fn), PLAIN),
    "float16": (lambda x: x.half(), PLAIN.astype(np.float16)),
    "float64": (lambda x: x.double(), PLAIN.astype(np.float64)),
    "uint16": (lambda x: x.to(torch.uint16), PLAIN.astype(np.uint16)),
    "conjugated": (lambda x: (x * 1j).conj(), PLAIN * np.complex64(-1j)),
    "negated": (lambda x: torch._neg_view(x.detach()), -PLAIN),
    "sparse": (lambda x: x.detach().to_sparse(), PLAIN),
    "rows in CSR": (lambda x: x.detach().to_sparse_csr(), PLAIN),
    "backwards": (lambda x: numpy_of(x)[:, ::-1], PLAIN[::-1]),
    "big-endian": (lambda x: numpy_of(x).astype(BIG), PLAIN),
    "Fortran's order": (lambda x: np.asfortranarray(numpy_of(x)), PLAIN),
    "read-only": (lambda x: np.broadcast_to(PLAIN, x.shape), PLAIN),
    "array": (numpy_of, PLAIN),
}
REFUSED = {
    "text": lambda x: ["x"] * len(x),
    "array of text": lambda x: np.array(["x"] * len(x)),
    "objects": lambda x: np.array([{}] * len(x)),
    "None": lambda x: None,
    "dates": lambda x: np.array(["2020-01-01"] * len(x), np.datetime64),
    "longdouble": lambda x: numpy_of(x).astype(np.longdouble),
    "quantised": lambda x: torch.quantize_per_tensor(x.detach(), 1.0, 0, torch.quint8),
    "half complex": lambda x: x.detach().to(torch.complex32),
    "a module": lambda x: torch.nn.Linear(1, 1),
    "a number": lambda x: 3.0,
}
pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|ComplexHalf|quantiz)")


@pytest.mark.parametrize("kind", RECORDED)
def test_outputs_are_recorded(kind):
    make, row = RECORDED[kind]
    column = sampled(extra=make).get_extra_model_outputs("extra")
    assert column.dtype == row.dtype and column.dtype.isnative
    np.testing.assert_array_equal(column, np.tile(row, (5, 1)))


@pytest.mark.parametrize("kind", RECORDED)
def test_logits_are_taken_or_refused(kind):
    make, row = RECORDED[kind]
    if row.dtype.kind == "c":
        with pytest.raises(ModuleOutputError, match=r"'scout': .*'action_dist_inputs'"):
            sampled(action_dist_inputs=make)
        return
    column = sampled(action_dist_inputs=make).get_extra_model_outputs("action_dist_inputs")
    np.testing.assert_array_equal(column, np.tile(row, (5, 1)))


class Masked(Net):
    def _forward(self, batch, **kwargs):
        return super()._forward({"obs": batch["obs"]["action_mask"]})


@pytest.mark.parametrize("kind", RECORDED)
def test_logits_of_any_kind_can_be_masked(kind):
    make, row = RECORDED[kind]
    spec = fastmarl.RLModuleSpec(module_class=Masked, model_config={"action_dist_inputs": make})
    config = fastmarl.EnvRunnerConfig(env="fastmarl.gridworld", policies={"scout": spec}, seed=0)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        if row.dtype.kind == "c":
            with pytest.raises(ModuleOutputError, match=r"'scout': .*'action_dist_inputs'"):
                runner.sample(num_timesteps=5)
            return
        parts = runner.sample(num_timesteps=20)[0].agent_episodes.values()
    logits = np.concatenate([part.get_extra_model_outputs("action_dist_inputs") for part in parts])
    legal = np.concatenate([part.get_observations()["action_mask"][:-1] for part in parts]) == 1
    np.testing.assert_array_equal(logits[legal], np.broadcast_to(row, logits.shape)[legal])
    assert not legal.all() and (logits[~legal] < -1e4).all()


@pytest.mark.parametrize("kind", sorted(RECORDED.keys() - {"sparse", "rows in CSR", "negated"}))
def test_actions_are_taken_or_refused(kind):
    make, row = RECORDED[kind]
    if row.dtype.kind == "c":
        with pytest.raises(ModuleOutputError, match=r"'scout': expected actions .* dtype complex64"):
            sampled(actions=lambda x: make(x)[:, 1])
        return
    actions = sampled(actions=lambda x: make(x)[:, 1]).get_actions()
    np.testing.assert_array_equal(actions, np.tile(row[1], 5))


@pytest.mark.parametrize("kind", RECORDED)
def test_states_are_kept_or_refused(kind):
    make, row = RECORDED[kind]
    if not np.can_cast(row.dtype, np.float32):
        with pytest.raises(ModuleOutputError, match=r"'scout': expected .*'state_out'.* float32, .* got"):
            sampled(initial=np.zeros(N_LOGITS, np.float32), state_out=make)
        return
    for initial in (np.zeros(N_LOGITS, np.float32), np.zeros(N_LOGITS, BIG), torch.zeros(N_LOGITS).bfloat16()):
        states = sampled(initial=initial, state_out=make).get_extra_model_outputs("state_in")["h"]
        np.testing.assert_array_equal(states, [0 * row, row, row, row, row])


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", ["extra", "actions", "action_dist_inputs", "state_out"])
def test_outputs_that_are_no_arrays_of_numbers_are_refused(kind, name):
    says = {"initial": np.zeros(N_LOGITS, np.float32)} if name == "state_out" else {}
    with pytest.raises(ModuleOutputError, match=f"'scout': expected .*{name}"):
        sampled(**says, **{name: REFUSED[kind]})


@pytest.mark.parametrize("output", [None, [torch.zeros(3, 5)], torch.zeros(3, 5)])
def test_a_forward_pass_returns_a_dict(output):
    class Undone(Net):
        def _forward(self, batch, **kwargs):
            return output

    spec = fastmarl.RLModuleSpec(module_class=Undone)
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", policies={"scout": spec})
    with fastmarl.MultiAgentEnvRunner(config) as runner, pytest.raises(ModuleOutputError, match="expected a dict"):
        runner.sample(num_timesteps=1)


@pytest.mark.parametrize("kind", RECORDED)
def test_policies_and_evaluations_take_them_too(kind):
    make, _ = RECORDED[kind]
    with fastmarl.MultiAgentEnvRunner(config_of(extra=make)) as runner:
        runner.evaluate(1)
        assert fastmarl.Policy.from_runner(runner).act(np.zeros(18, np.float32), "agent_0") in range(5)
