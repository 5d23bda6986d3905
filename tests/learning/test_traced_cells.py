"""Which recurrent modules of users PPOLearner updates by compiled code, and which are left to autograd."""

import copy
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from fastmarl.core.spaces.structs import map_struct
from fastmarl.learning import PPOLearner
from fastmarl.modules import RLModule

BOX, DISCRETE = gym.spaces.Box(-9, 9, (6,), np.float32), gym.spaces.Discrete(4)
SIZE = 5


class LSTM(RLModule):
    """RLlib's form: the state's arrays are vectors, and the layer's first axis is the batch."""

    options = MappingProxyType({"batch_first": True})

    def setup(self):
        self.before, self.lstm = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.LSTM(8, SIZE, **self.options)
        self.after, self.pi, self.vf = nn.Sequential(nn.Linear(SIZE, 7), nn.ReLU()), nn.Linear(7, 4), nn.Linear(7, 1)

    def get_initial_state(self):
        return {"c": np.zeros(SIZE, np.float32), "h": np.zeros(SIZE, np.float32)}

    def remember(self, x, state):
        y, (h, c) = self.lstm(x, (state["h"].unsqueeze(0), state["c"].unsqueeze(0)))
        return y, {"h": h.squeeze(0), "c": c.squeeze(0)}

    def _forward(self, batch, **kwargs):
        features, state = self.remember(self.before(batch["obs"]), batch["state_in"])
        features = self.after(features)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features).squeeze(-1), "state_out": state}


class NoBias(LSTM):
    options = MappingProxyType({"batch_first": True, "bias": False})


class TimeFirst(LSTM):
    options = MappingProxyType({})

    def remember(self, x, state):
        y, state = super().remember(x.transpose(0, 1), state)
        return y.transpose(0, 1), state


class GRU(LSTM):
    """The state has torch's own axis of layers."""

    def setup(self):
        super().setup()
        self.lstm = nn.GRU(8, SIZE, **self.options)

    def get_initial_state(self):
        return {"h": np.zeros((1, SIZE), np.float32)}

    def remember(self, x, state):
        y, h = self.lstm(x, state["h"].transpose(0, 1).contiguous())
        return y, {"h": h.transpose(0, 1)}


class GRUTimeFirst(GRU):
    options = MappingProxyType({})

    def remember(self, x, state):
        y, state = super().remember(x.permute(1, 0, 2), state)
        return y.permute(1, 0, 2), state


class LSTMCell(LSTM):
    """The cell is called in a loop over the steps."""

    def setup(self):
        super().setup()
        self.lstm = nn.LSTMCell(8, SIZE)

    def remember(self, x, state):
        h, c, outputs = state["h"], state["c"], []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1), {"h": h, "c": c}


class GRUCell(LSTM):
    def setup(self):
        super().setup()
        self.lstm = nn.GRUCell(8, SIZE)

    def remember(self, x, state):
        h, outputs = state["h"], []
        for t in range(x.shape[1]):
            h = self.lstm(x[:, t], h)
            outputs.append(h)
        return torch.stack(outputs).transpose(0, 1), {"h": h, "c": state["c"]}


class ActorAndCritic(LSTM):
    """A cell of each kind, and a value that reads the observations themselves."""

    def setup(self):
        super().setup()
        self.critic, self.values = nn.GRU(6, SIZE, batch_first=True), nn.Linear(SIZE, 1)

    def get_initial_state(self):
        return super().get_initial_state() | {"critic": {"h": np.zeros(SIZE, np.float32)}}

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        features, h = self.critic(batch["obs"], batch["state_in"]["critic"]["h"][None])
        state = outputs["state_out"] | {"critic": {"h": h[0]}}
        return outputs | {"vf_preds": self.values(features)[..., 0], "state_out": state}


class OneOnTheOther(LSTM):
    def setup(self):
        super().setup()
        self.upper = nn.GRU(SIZE, SIZE, batch_first=True)

    def remember(self, x, state):
        y, out = super().remember(x, state)
        y, h = self.upper(y, state["upper"].unsqueeze(0))
        return y, out | {"upper": h.squeeze(0)}

    def get_initial_state(self):
        return super().get_initial_state() | {"upper": np.zeros(SIZE, np.float32)}


COMPILED = [LSTM, NoBias, TimeFirst, GRU, GRUTimeFirst, LSTMCell, GRUCell, ActorAndCritic, OneOnTheOther]


# Modules that are left to autograd.


class TwoLayers(LSTM):
    options = MappingProxyType({"batch_first": True, "num_layers": 2})

    def get_initial_state(self):
        return {name: np.zeros((2, SIZE), np.float32) for name in "hc"}

    def remember(self, x, state):
        y, (h, c) = self.lstm(x, tuple(state[name].transpose(0, 1).contiguous() for name in "hc"))
        return y, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}


class Projected(LSTM):
    options = MappingProxyType({"batch_first": True, "proj_size": 3})

    def setup(self):
        super().setup()
        self.after = nn.Linear(3, 7)

    def remember(self, x, state):
        y, _ = self.lstm(x, (state["h"][None, :, :3].contiguous(), state["c"][None]))
        return y, state


class BothWays(LSTM):
    options = MappingProxyType({"batch_first": True, "bidirectional": True})

    def setup(self):
        super().setup()
        self.after = nn.Linear(2 * SIZE, 7)

    def get_initial_state(self):
        return {name: np.zeros((2, SIZE), np.float32) for name in "hc"}

    def remember(self, x, state):
        y, (h, c) = self.lstm(x, tuple(state[name].transpose(0, 1).contiguous() for name in "hc"))
        return y, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)}


class Forgetful(LSTM):
    """Each sequence begins with zeros."""

    def remember(self, x, state):
        return self.lstm(x)[0], state


class Confused(LSTM):
    """h and c have changed places, which is a network, too."""

    def remember(self, x, state):
        return super().remember(x, {"h": state["c"], "c": state["h"]})


class Halved(LSTM):
    def remember(self, x, state):
        return super().remember(x, {"h": state["h"] / 2, "c": state["c"]})


class WrongAxis(LSTM):
    """The batch is taken for the time."""

    options = MappingProxyType({})

    def remember(self, x, state):
        first = {name: leaf[:1].expand(x.shape[1], SIZE) for name, leaf in state.items()}
        return super().remember(x, first)[0], state


class Reshaped(TimeFirst):
    """By a view that mixes sequences."""

    def remember(self, x, state):
        y, _ = LSTM.remember(self, x.reshape(x.shape[1], x.shape[0], -1), state)
        return y.reshape(*x.shape[:2], -1), state


class LastStep(LSTM):
    """All steps read the state after the last one."""

    def remember(self, x, state):
        y, out = super().remember(x, state)
        return out["h"].unsqueeze(1).expand_as(y), out


class Activated(LSTM):
    def remember(self, x, state):
        y, out = super().remember(x, state)
        return torch.tanh(y), out


class Residual(LSTM):
    def remember(self, x, state):
        y, out = super().remember(x, state)
        return y + x[..., :SIZE], out


class Backwards(LSTMCell):
    def remember(self, x, state):
        y, out = super().remember(x.flip(1), state)
        return y.flip(1), out


class SkipsSteps(LSTMCell):
    """Every second step's input is read twice."""

    def remember(self, x, state):
        h, c, outputs = state["h"], state["c"], []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t - t % 2], (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1), {"h": h, "c": c}


class StacksInAnotherOrder(LSTMCell):
    def remember(self, x, state):
        h, c, outputs = state["h"], state["c"], []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            outputs.insert(0, h)
        return torch.stack(outputs, 1), {"h": h, "c": c}


class ForgetsInTheMiddle(LSTMCell):
    def remember(self, x, state):
        h, c, outputs = state["h"], state["c"], []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c) if t != 3 else (state["h"], state["c"]))
            outputs.append(h)
        return torch.stack(outputs, 1), {"h": h, "c": c}


class TwoCellsInTurn(LSTMCell):
    def setup(self):
        super().setup()
        self.other = nn.LSTMCell(8, SIZE)

    def remember(self, x, state):
        h, c, outputs = state["h"], state["c"], []
        for t in range(x.shape[1]):
            h, c = (self.lstm if t % 2 else self.other)(x[:, t], (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1), {"h": h, "c": c}


class DetachedState(LSTMCell):
    """Truncated backpropagation: the gradient does not go back in time."""

    def remember(self, x, state):
        h, c, outputs = state["h"], state["c"], []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h.detach(), c.detach()))
            outputs.append(h)
        return torch.stack(outputs, 1), {"h": h, "c": c}


class Packed(LSTM):
    def remember(self, x, state):
        packed = nn.utils.rnn.pack_padded_sequence(x, [x.shape[1]] * len(x), batch_first=True)
        y, _ = self.lstm(packed, (state["h"][None], state["c"][None]))
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0], state


class Hooked(LSTM):
    def setup(self):
        super().setup()
        self.lstm.register_forward_hook(lambda module, given, outputs: (outputs[0] * 2, outputs[1]))


class SharedCells(ActorAndCritic):
    """A layer that both networks use."""

    def setup(self):
        super().setup()
        self.critic = nn.GRU(8, SIZE, batch_first=True)

    def _forward(self, batch, **kwargs):
        outputs = LSTM._forward(self, batch)
        features, h = self.critic(self.before(batch["obs"]), batch["state_in"]["critic"]["h"][None])
        state = outputs["state_out"] | {"critic": {"h": h[0]}}
        return outputs | {"vf_preds": self.values(features)[..., 0], "state_out": state}


LEFT = [
    TwoLayers, Projected, BothWays, Forgetful, Halved, WrongAxis, Reshaped, LastStep, Activated, Residual, Backwards,
    SkipsSteps, StacksInAnotherOrder, ForgetsInTheMiddle, TwoCellsInTurn, DetachedState, Packed, Hooked, SharedCells,
]  # fmt: skip


def batch_of(module, n, length, seed=0):
    torch.manual_seed(seed)
    states = map_struct(lambda leaf: torch.randn(n, *leaf.shape), module.get_initial_state())
    return {
        "obs": torch.randn(n, length, 6), "state_in": states, "actions": torch.randint(0, 4, (n, length)),
        "action_logp": torch.full((n, length), -1.4), "advantages": torch.randn(n, length),
        "value_targets": torch.randn(n, length), "loss_mask": torch.rand(n, length) < 0.8,
    }  # fmt: skip


def assert_updates_are_autograds(module, batches):
    """Update copies of the module both ways; returns the backend of ours."""
    options = MappingProxyType({"lr": 1e-2, "epochs": 2, "num_minibatches": 2})
    ours, theirs = (
        PPOLearner(each, compiled=compiled, generator=torch.Generator().manual_seed(0), **options)
        for each, compiled in ((copy.deepcopy(module), True), (module, False))
    )
    for batch in batches:
        assert ours.update(batch) == pytest.approx(theirs.update(batch), rel=1e-3, abs=1e-4)
    off = (ours.parameters - theirs.parameters).abs()
    assert off.median() < 1e-5 and off.mean() < 1e-4
    return ours.backend


@pytest.mark.thinned(3)
@pytest.mark.parametrize("shape", [(5, 7), (7, 7), (2, 2), (1, 4), (40, 1)])
@pytest.mark.parametrize("module_class", COMPILED)
def test_modules_that_are_compiled(module_class, shape):
    torch.manual_seed(1)
    module = module_class(observation_space=BOX, action_space=DISCRETE)
    batches = [batch_of(module, *shape, seed=seed) for seed in range(2)]
    assert assert_updates_are_autograds(module, batches) == "compiled"


@pytest.mark.parametrize("module_class", LEFT)
def test_modules_that_are_left_to_autograd(module_class):
    torch.manual_seed(1)
    module = module_class(observation_space=BOX, action_space=DISCRETE)
    backend = assert_updates_are_autograds(module, [batch_of(module, 6, 6, seed=seed) for seed in range(2)])
    assert backend.startswith("autograd: ") and "compiled gradient" not in backend  # which is compared at the end


def test_states_whose_names_are_exchanged():
    """Which of them is h is known from the pass."""
    module = Confused(observation_space=BOX, action_space=DISCRETE)
    assert assert_updates_are_autograds(module, [batch_of(module, 6, 4)]) == "compiled"
