"""Models of the old stack: what users configure, and what they write."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from ray.rllib.models import ModelCatalog
from ray.rllib.models.torch.recurrent_net import RecurrentNetwork
from ray.rllib.models.torch.torch_action_dist import TorchCategorical
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from ray.rllib.policy.view_requirement import ViewRequirement
from rllib.differential import tape
from rllib.differential.tape import ID_COLUMNS, freeze
from torch import nn


class _Wide(TorchModelV2, nn.Module):
    """Two linear layers over all columns that it names."""

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: dict, name: str) -> None:
        nn.Module.__init__(self)
        TorchModelV2.__init__(self, obs_space, action_space, num_outputs, model_config, name)
        self.require()
        self.body = nn.LazyLinear(8)
        self.head, self.value = nn.Linear(8, num_outputs), nn.Linear(8, 1)
        columns = {name: self._example(view) for name, view in self.view_requirements.items() if name in self.inputs}
        self(columns, [], None)

    inputs: tuple[str, ...] = ("obs",)

    def require(self) -> None:
        """Name views besides that of the observation."""

    def forward(self, input_dict: Any, state: list, seq_lens: Any) -> tuple[Any, list]:
        rows = [input_dict[name].float() for name in self.inputs]
        self.features = torch.tanh(self.body(torch.cat([row.reshape(len(row), -1) for row in rows], 1)))
        return self.head(self.features), state

    def value_function(self) -> Any:
        return self.value(self.features).flatten()

    def _example(self, view: ViewRequirement) -> Any:
        steps = len(view.shift_arr)
        return torch.zeros((2, *((steps,) if steps > 1 else ()), *view.space.shape))


class Noting(_Wide):
    """Writes down what it is given."""

    def forward(self, input_dict: Any, state: list, seq_lens: Any) -> tuple[Any, list]:
        _note(input_dict, state, seq_lens)
        return super().forward(input_dict, state, seq_lens)


def _note(input_dict: Any, state: list, seq_lens: Any) -> None:
    # No ids: in policies' dummy batches they are 0, which is also a real id. `Heuristic` notes all columns.
    names = [name for name in input_dict.keys() if name not in ID_COLUMNS]  # noqa: SIM118 - it may be a SampleBatch
    columns = {name: input_dict[name] for name in names}
    settings = type(input_dict).__name__, getattr(input_dict, "is_training", None), getattr(input_dict, "count", None)
    tape.note("forward", "model", freeze(columns), freeze(state), freeze(seq_lens), *settings)


class Stacked(_Wide):
    """Sees the last observations, too."""

    inputs = ("obs", "stack")

    def require(self) -> None:
        self.view_requirements["stack"] = ViewRequirement("obs", shift="-2:0", space=self.obs_space)


class Remembering(_Wide):
    """A model that sees earlier actions and rewards."""

    inputs = ("obs", "last_actions", "last_rewards", "one_action")

    def require(self) -> None:
        shape = self.action_space.shape
        actions = Box(-np.inf, np.inf, shape)
        views = self.view_requirements
        views["last_actions"] = ViewRequirement("actions", shift="-2:-1", space=actions)
        views["some_actions"] = ViewRequirement("actions", shift=[-3, -1], space=actions)
        views["one_action"] = ViewRequirement("actions", shift=-1, space=actions)
        views["last_rewards"] = ViewRequirement("rewards", shift="-2:-1")


class Foreseeing(_Wide):
    """Asks for what comes later, for training alone; and for every third row of what was."""

    def require(self) -> None:
        views = self.view_requirements
        views["obs_after"] = ViewRequirement("obs", shift=1, space=self.obs_space, used_for_compute_actions=False)
        views["later"] = ViewRequirement("rewards", shift=[0, 2], used_for_compute_actions=False)
        views["unused"] = ViewRequirement("obs", shift=-2, space=self.obs_space, used_for_training=False)
        views["infos"] = ViewRequirement("infos", used_for_compute_actions=False)


class Repeating(_Wide):
    """Asks for a view of every third step."""

    def require(self) -> None:
        self.view_requirements["third"] = ViewRequirement(
            "obs", shift="-3:-1", space=self.obs_space, batch_repeat_value=3, used_for_compute_actions=False
        )


class Recurrent(RecurrentNetwork, nn.Module):
    """With a state of its own, of two parts."""

    def __init__(self, obs_space: Any, action_space: Any, num_outputs: int, model_config: dict, name: str) -> None:
        nn.Module.__init__(self)
        super().__init__(obs_space, action_space, num_outputs, model_config, name)
        self.cell = nn.GRU(int(np.prod(obs_space.shape)), 3, batch_first=True)
        self.head, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def get_initial_state(self) -> list:
        return [torch.full((3,), 0.5), torch.zeros(1)]

    def forward_rnn(self, inputs: Any, state: list, seq_lens: Any) -> tuple[Any, list]:
        self.features, hidden = self.cell(inputs, state[0].unsqueeze(0).contiguous())
        return self.head(self.features), [hidden.squeeze(0), state[1] + 1]

    def value_function(self) -> Any:
        return self.value(self.features).flatten()


class Prying(Recurrent):
    """Writes down what it is given."""

    def forward(self, input_dict: Any, state: list, seq_lens: Any) -> tuple[Any, list]:
        _note(input_dict, state, seq_lens)
        return super().forward(input_dict, state, seq_lens)


class Switching(Noting):
    """Sets itself to training mode, drops out units, and gets another layer after some calls."""

    def __init__(self, *args: Any) -> None:
        self.calls = 0
        super().__init__(*args)

    def forward(self, input_dict: Any, state: list, seq_lens: Any) -> tuple[Any, list]:
        self.calls += 1
        if self.calls == 20:
            self.head = nn.Sequential(self.head, nn.Dropout())
        if self.calls % 7 == 0:
            self.train()
        logits, state = super().forward(input_dict, state, seq_lens)
        return nn.functional.dropout(logits, 0.5, self.training), state


class Sequences(Recurrent):
    """Calls an LSTM with one step and with two, without and with gradients; a part of it is scripted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lstm = nn.LSTM(self.cell.input_size, 3, batch_first=True)
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))

    def forward_rnn(self, inputs: Any, state: list, seq_lens: Any) -> tuple[Any, list]:
        logits, state_out = super().forward_rnn(inputs, state, seq_lens)
        hidden = state[0].unsqueeze(0).contiguous()
        one, _ = self.lstm(inputs, (hidden, hidden))
        two, _ = self.lstm(torch.cat([inputs, inputs], 1), [hidden, hidden])
        first, _ = self.lstm(inputs)
        with torch.enable_grad():
            traced, _ = self.lstm(inputs, (hidden, hidden))
            gradient = torch.autograd.grad(traced.sum(), self.lstm.weight_ih_l0)
        tape.note("forward", "lstm", freeze([one, two, first, gradient]))
        return logits + self.head(self.scripted(one + two[:, -inputs.shape[1] :] + first)), state_out


class Greedy(TorchCategorical):
    """A distribution of its own: it draws the likeliest action, or the one after it, from NumPy's generator."""

    def sample(self) -> Any:
        step = int(np.random.randint(2))  # noqa: NPY002
        self.last_sample = (self.dist.probs.argmax(dim=1) + step) % self.dist.probs.shape[1]
        return self.last_sample


_SMALL: dict[str, Any] = {"fcnet_hiddens": [8], "fcnet_activation": "tanh"}
_LSTM = {**_SMALL, "use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4}
_ATTENTION = {
    **_SMALL,
    "use_attention": True,
    "attention_dim": 4,
    "attention_num_heads": 1,
    "attention_head_dim": 4,
    "attention_memory_inference": 3,
    "attention_memory_training": 3,
    "attention_position_wise_mlp_dim": 4,
    "max_seq_len": 4,
}

MODELS: dict[str, dict[str, Any]] = {
    "small": _SMALL,
    "relu": {"fcnet_hiddens": [8, 6], "fcnet_activation": "relu", "vf_share_layers": True},
    "free_log_std": {**_SMALL, "free_log_std": True},
    "lstm": _LSTM,
    "lstm, previous": {**_LSTM, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    "attention": _ATTENTION,
    "attention, previous": {**_ATTENTION, "attention_use_n_prev_actions": 2, "attention_use_n_prev_rewards": 2},
    "convolutions": {"post_fcnet_hiddens": [4]},
    "greedy": {**_SMALL, "custom_action_dist": "greedy"},
    "noting": {"custom_model": Noting},
    "stacked": {"custom_model": Stacked},
    "remembering": {"custom_model": Remembering},
    "foreseeing": {"custom_model": Foreseeing},
    "repeating": {"custom_model": Repeating},
    "recurrent": {"custom_model": Recurrent, "max_seq_len": 5},
    "prying": {"custom_model": Prying, "max_seq_len": 3},
    "sequences": {"custom_model": Sequences, "max_seq_len": 4},
    "switching": {"custom_model": Switching},
}

ModelCatalog.register_custom_action_dist("greedy", Greedy)
