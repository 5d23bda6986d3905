"""RLlib's forward pass and its first connector pieces, and ours: same bytes, same use of torch's generator."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.connectors.module_to_env import GetActions, TensorToNumpy
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from support.exhaustive import params
from torch import nn

from fastmarl.core.nets.transfer import StagedCopy
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.errors import ModuleOutputError
from fastmarl.rllib.inference import draws as sampling
from fastmarl.rllib.inference import draws_torch as sampling_torch
from fastmarl.rllib.inference.draws_cpu import CategoricalRows, GaussianRows
from fastmarl.rllib.inference.draws_torch import CategoricalSampler, GaussianSampler
from fastmarl.rllib.inference.inference import ExactInference

OBS_SIZE = 5
OBS = Box(-1, 1, (OBS_SIZE,), np.float32)
ACTION_SPACES = {
    "discrete": Discrete(4),
    "one_choice": Discrete(1),
    "two_choices": Discrete(2, start=3),
    "many_choices": Discrete(70),
    "multi_discrete": MultiDiscrete([2, 5, 1, 3]),
    "box": Box(-1, 1, (3,), np.float32),
    "wide_box": Box(-1, 1, (20,), np.float32),
    "scalar_box": Box(-1, 1, (), np.float32),
    "dict": Dict({"b": Discrete(3), "a": Box(-1, 1, (2,), np.float32)}),
    "tuple": Tuple((MultiDiscrete([2, 3]), Dict({"z": Discrete(2), "c": Discrete(5)}))),
}
BATCH_SIZES = (1, 2, 3, 17, 64, 70)
LARGE_BATCHES = (127, 600)


def build(
    action_space: gym.Space,
    *,
    obs_space: gym.Space = OBS,
    module_class: type = DefaultPPOTorchRLModule,
    n_modules: int = 2,
    inference_only: bool = True,
    multi_class: type = MultiRLModule,
    options: dict[str, Any] | None = None,
    **config: Any,
) -> MultiRLModule:
    """Modules "p0", "p1", ... with weights large enough for their outputs to differ.

    Args:
        options: of the model config, where an algorithm has more than the default ones.
    """
    config.setdefault("fcnet_hiddens", [32, 16])
    spec = RLModuleSpec(
        module_class=module_class,
        observation_space=obs_space,
        action_space=action_space,
        inference_only=inference_only,
        model_config={**vars(DefaultModelConfig(**config)), **options} if options else DefaultModelConfig(**config),
    )
    specs = {f"p{i}": spec for i in range(n_modules)}
    module = MultiRLModuleSpec(multi_rl_module_class=multi_class, rl_module_specs=specs).build()
    module.foreach_module(lambda _, part: shake(part))
    return module


@torch.no_grad()
def shake(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.copy_(torch.randn_like(parameter))


def batches_of(module: MultiRLModule, sizes: list[int]) -> dict[str, dict[str, Any]]:
    batches = {}
    for (module_id, part), n in zip(module.items(), sizes, strict=True):
        obs = torch.randn(n, *part.observation_space.shape)
        batches[module_id] = {Columns.OBS: obs}
        if part.is_stateful():
            state = {path: torch.randn(n, *leaf.shape) for path, leaf in flatten_struct(part.get_initial_state())}
            batches[module_id] = {Columns.OBS: obs.unsqueeze(1), Columns.STATE_IN: nest(state)}
    return batches


def nest(leaves: dict[tuple, torch.Tensor]) -> dict:
    nested: dict = {}
    for (*path, name), leaf in leaves.items():
        place = nested
        for key in path:
            place = place.setdefault(key, {})
        place[name] = leaf
    return nested


def theirs(module: MultiRLModule, batches: dict, explore: bool, t: int = 0) -> dict[str, dict]:
    outputs = module.forward_exploration(batches, t=t) if explore else module.forward_inference(batches)
    options = {"rl_module": module, "episodes": [MultiAgentEpisode()], "explore": explore}
    arrays = TensorToNumpy()(batch=GetActions()(batch=outputs, **options), **options)
    return {module_id: columns_of(module[module_id], columns) for module_id, columns in arrays.items()}


def columns_of(part: Any, columns: dict) -> dict:
    flat = {}
    for name, value in columns.items():
        for path, leaf in flatten_struct(value):
            has_time = part.is_stateful() and name != Columns.STATE_OUT
            flat[(name, *path) if path else name] = np.squeeze(leaf, 1) if has_time else leaf
    return flat


def ours(inference: ExactInference, batches: dict, explore: bool, t: int = 0) -> dict[str, dict]:
    return inference.answer(batches, explore=explore, t=t)


def assert_equal(module: MultiRLModule, inference: ExactInference, sizes: list[int], seed: int, **options: Any) -> None:
    batches = batches_of(module, sizes)
    torch.manual_seed(seed)
    try:
        want = theirs(module, batches, **options)
    except RuntimeError as error:
        # RLlib can't add the log-probabilities of several parts when not exploring, unless their shapes happen to fit
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            ours(inference, batches, **options)
        return
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    got = ours(inference, batches, **options)
    assert torch.equal(state, torch.get_rng_state())
    assert list(want) == list(got)
    for module_id, columns in want.items():
        assert_same_columns(columns, got[module_id])


def assert_same_columns(want: dict, got: dict) -> None:
    assert list(want) == list(got)
    for key, array in want.items():
        assert (array.dtype, array.shape) == (got[key].dtype, got[key].shape), key
        assert array.tobytes() == got[key].tobytes(), key


def assert_equal_always(module: MultiRLModule, rng: np.random.Generator) -> None:
    """In many batches, exploring and not."""
    inference = ExactInference(module, None)
    for n in (*BATCH_SIZES, *rng.integers(1, 70, 10), int(rng.choice(LARGE_BATCHES))):
        sizes = [int(n), *(int(m) for m in rng.integers(1, 70, len(module) - 1))]
        for explore in (True, False):
            assert_equal(module, inference, sizes, int(rng.integers(2**31)), explore=explore)


def is_quick(inference: ExactInference) -> bool:
    return inference.leaves_input_untouched("p0")


@pytest.mark.parametrize("space", ACTION_SPACES)
def test_action_spaces(space: str, rng: np.random.Generator) -> None:
    module = build(ACTION_SPACES[space])
    assert sampling.sampler_of(module["p0"].get_exploration_action_dist_cls(), torch.device("cpu")) is not None
    assert_equal_always(module, rng)


@pytest.mark.parametrize("space", ["box", "scalar_box"])
def test_free_log_std_that_is_not_clipped(space: str, rng: np.random.Generator) -> None:
    module = build(ACTION_SPACES[space], free_log_std=True, log_std_clip_param=0.3)
    module.foreach_module(lambda _, part: setattr(part.pi, "clip_log_std", False))
    assert is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)


IMAGES = Box(-1, 1, (8, 8, 1), np.float32)
FILTERS = {"conv_filters": [[4, 3, 2], [4, 3, 2]]}
LSTM = {"use_lstm": True, "lstm_cell_size": 7}
QUICK: dict[str, tuple[str, dict[str, Any]]] = {
    # name -> names of action spaces, and arguments of build()
    "default": ("discrete box tuple", {}),
    "own critic": ("discrete box tuple", {"vf_share_layers": False}),
    "relu, head": ("discrete box tuple", {"fcnet_activation": "relu", "head_fcnet_hiddens": [8, 4]}),
    "elu, norm": ("discrete box tuple", {"fcnet_activation": "elu", "fcnet_use_layernorm": True, "fcnet_hiddens": [9]}),
    "silu, head with norm": ("discrete box tuple", {
        "fcnet_activation": "silu", "head_fcnet_hiddens": [6], "head_fcnet_activation": "tanh",
        "head_fcnet_use_layernorm": True,
    }),
    "linear": ("discrete box tuple", {"fcnet_activation": "linear"}),
    "class as activation": ("discrete box tuple", {"fcnet_activation": nn.GELU}),
    "clipped": ("discrete box tuple", {"log_std_clip_param": 0.05}),
    "free_log_std": ("box scalar_box", {"free_log_std": True, "log_std_clip_param": 0.3}),
    "with a critic": ("discrete box", {"inference_only": False, "vf_share_layers": False}),
    "lstm": ("discrete box multi_discrete", {**LSTM, "vf_share_layers": True}),
    "lstm, own critic": ("discrete box multi_discrete", {**LSTM, "vf_share_layers": False}),
    "lstm, large": ("discrete box multi_discrete", {**LSTM, "lstm_cell_size": 200, "fcnet_activation": "relu"}),
    "lstm, clipped": ("discrete box multi_discrete", {**LSTM, "log_std_clip_param": 0.05}),
    "lstm, images": ("discrete box multi_discrete", {**LSTM, **FILTERS, "obs_space": IMAGES, "vf_share_layers": False}),
    "images": ("discrete", {**FILTERS, "obs_space": IMAGES}),
    "images, valid padding": ("discrete", {
        "conv_filters": [[4, 3, 2, "valid"], [3, [2, 1], [1, 2], "valid"]], "obs_space": IMAGES,
    }),
    "images, elu, head": ("discrete", {
        **FILTERS, "obs_space": IMAGES, "conv_activation": "elu", "head_fcnet_hiddens": [8],
    }),
    "images, no bias": ("discrete", {**FILTERS, "obs_space": IMAGES, "conv_bias_initializer": None}),
    "images, with a critic": ("discrete", {
        **FILTERS, "obs_space": IMAGES, "vf_share_layers": False, "inference_only": False,
    }),
    "sac": ("discrete box", {"module_class": DefaultSACTorchRLModule, "options": {"twin_q": True}}),
}  # fmt: skip


SPACES = {name: spaces.split() for name, (spaces, _) in QUICK.items()}
# Each kind of module with one space, by turns: distributions are not the modules' business.
KEPT = {("default", space) for space in SPACES["default"]} | {
    (name, spaces[i % len(spaces)]) for i, (name, spaces) in enumerate(SPACES.items())
}


@pytest.mark.parametrize(("name", "space"), params([(name, space) for name in QUICK for space in SPACES[name]], KEPT))
def test_modules_of_rllib(name: str, space: str, rng: np.random.Generator) -> None:
    module = build(ACTION_SPACES[space], **QUICK[name][1])
    assert is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)
    assert module["p0"].training


def test_recurrent_modules_without_onednn(rng: np.random.Generator) -> None:
    module = build(Discrete(4), use_lstm=True, lstm_cell_size=16)
    torch.backends.mkldnn.set_flags(_enabled=False)
    try:
        assert_equal_always(module, rng)
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)
    assert_equal_always(module, rng)


def lstm_of(module: MultiRLModule) -> nn.LSTM:
    return module["p0"].encoder.encoder.lstm  # type: ignore[no-any-return]


CHANGES_OF_WEIGHTS: dict[str, Any] = {
    "another parameter": lambda lstm: setattr(lstm, "weight_hh_l0", nn.Parameter(torch.randn_like(lstm.weight_hh_l0))),
    "other memory": lambda lstm: setattr(lstm.weight_ih_l0, "data", torch.randn_like(lstm.weight_ih_l0)),
    "one number": lambda lstm: lstm.weight_hh_l0.detach()[3, 4].add_(1),
    "without a version": lambda lstm: lstm.weight_ih_l0.data.mul_(0.5),
    "by NumPy": lambda lstm: np.add(lstm.weight_hh_l0.detach().numpy(), 0.25, out=lstm.weight_hh_l0.detach().numpy()),
    "biases": lambda lstm: lstm.bias_hh_l0.data.add_(1),
    "all": shake,
}


@pytest.mark.parametrize("change", CHANGES_OF_WEIGHTS.values(), ids=CHANGES_OF_WEIGHTS)
def test_changed_weights_of_recurrent_modules(change: Any) -> None:
    """Between two forward passes of one call of sample()."""
    module = build(Discrete(4), use_lstm=True, lstm_cell_size=16)
    inference = ExactInference(module, None)
    for seed in range(2):
        assert_equal(module, inference, [3, 5], seed, explore=True)
        change(lstm_of(module))
    assert_equal(module, inference, [3, 5], 2, explore=True)
    assert is_quick(inference)


def test_recurrent_module_made_in_inference_mode(rng: np.random.Generator) -> None:
    """Its weights have no version counters."""
    with torch.inference_mode():
        module = build(Discrete(4), use_lstm=True, lstm_cell_size=16)
    assert_equal_always(module, rng)


@pytest.mark.parametrize("wrong", ["obs", "state"])
def test_wrong_sizes_for_recurrent_modules(wrong: str) -> None:
    """RLlib's error; oneDNN itself looks at no sizes."""
    module = build(Discrete(4), use_lstm=True, lstm_cell_size=16)
    module["p0"].encoder.encoder.tokenizer = None
    batch = batches_of(module, [3, 2])["p0"]
    if wrong == "state":
        batch[Columns.OBS] = torch.randn(3, 1, lstm_of(module).input_size)
        batch[Columns.STATE_IN]["c"] = batch[Columns.STATE_IN]["c"][..., 1:]
    with pytest.raises(RuntimeError, match="Expected") as theirs_error:
        module["p0"].forward_exploration(batch)
    with pytest.raises(RuntimeError, match=re.escape(str(theirs_error.value))):
        ExactInference(module, None).answer({"p0": batch}, explore=True, t=0)


def test_recurrent_modules_with_other_layers(rng: np.random.Generator) -> None:
    module = build(Discrete(4), use_lstm=True, lstm_cell_size=16, n_modules=1)
    encoder = module["p0"].encoder.encoder
    encoder.lstm.register_forward_hook(lambda layer, inputs, outputs: (outputs[0] * 2, outputs[1]))
    assert not is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)
    encoder.lstm = nn.LSTM(encoder.lstm.input_size, 16, bias=False, batch_first=True)
    assert not is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)


def test_images_with_hooks(rng: np.random.Generator) -> None:
    module = build(Discrete(3), obs_space=IMAGES, **FILTERS)
    module["p0"].encoder.encoder.net[0].cnn[1].register_forward_hook(lambda layer, inputs, outputs: outputs * 2)
    assert not is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)


def test_dqn_modules(rng: np.random.Generator) -> None:
    """They choose actions themselves, by a schedule over time."""
    options = {"epsilon": [(0, 1.0), (10_000, 0.05)], "num_atoms": 1, "dueling": True, "double_q": True}
    module = build(Discrete(4), module_class=DefaultDQNTorchRLModule, n_modules=1, options=options)
    inference = ExactInference(module, None)
    for t in (0, 5_000, 50_000):
        assert_equal(module, inference, [9], t, explore=True, t=t)
        assert_equal(module, inference, [9], t, explore=False)


class WithOwnOutputs(TorchRLModule):
    """Outputs of every kind that TensorToNumpy knows, one of them nested."""

    def setup(self) -> None:
        self.layer = nn.Linear(OBS_SIZE, 3)

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        logits = self.layer(batch[Columns.OBS])
        counts = torch.arange(len(logits))
        return {
            "nested": {"z": logits.double(), "a": (counts, counts.to(torch.uint8))},
            Columns.ACTION_DIST_INPUTS: logits,
            "flags": logits > 0,
            "array": np.arange(len(logits)),
        }


class WithOwnActions(WithOwnOutputs):
    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTIONS: super()._forward(batch)[Columns.ACTION_DIST_INPUTS].argmax(-1), "t": batch["obs"]}


class WithOwnLogp(WithOwnOutputs):
    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTION_LOGP: batch["obs"][:, 0], **super()._forward(batch)}


class WithGradients(WithOwnOutputs):
    def _forward_exploration(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTION_DIST_INPUTS: self.layer(batch[Columns.OBS])}


class InDoublePrecision(WithOwnOutputs):
    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTION_DIST_INPUTS: self.layer(batch[Columns.OBS]).double()}


class Transposed(WithOwnOutputs):
    """Memory in another order, which torch sums and draws in."""

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {Columns.ACTION_DIST_INPUTS: self.layer(batch[Columns.OBS]).repeat(1, 7).t().contiguous().t()}


class Noting(DefaultPPOTorchRLModule):
    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        outputs = super()._forward(batch, **kwargs)
        return {**outputs, "twice": 2 * outputs[Columns.ACTION_DIST_INPUTS]}


@pytest.mark.parametrize(
    "module_class",
    [WithOwnOutputs, WithOwnActions, WithOwnLogp, WithGradients, InDoublePrecision, Transposed, Noting],
)
def test_custom_modules(module_class: type, rng: np.random.Generator) -> None:
    module = build(Discrete(3), module_class=module_class)
    assert not is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)


class Summing(MultiRLModule):
    """Modules that know of each other."""

    def _forward_exploration(self, batch: dict, **kwargs: Any) -> dict:
        outputs = super()._forward_exploration(batch, **kwargs)
        total = sum(one[Columns.ACTION_DIST_INPUTS].sum() for one in outputs.values())
        return {name: {Columns.ACTION_DIST_INPUTS: one["action_dist_inputs"] + total} for name, one in outputs.items()}


def test_custom_multi_module(rng: np.random.Generator) -> None:
    module = build(Discrete(3), multi_class=Summing)
    assert not is_quick(ExactInference(module, None))
    assert_equal_always(module, rng)


def test_trained_in_place(rng: np.random.Generator) -> None:
    module = build(ACTION_SPACES["box"])
    inference = ExactInference(module, None)
    for explore in (True, False):
        shake(module["p0"])
        assert_equal(module, inference, [4, 3], 1, explore=explore)


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_state_set(space: str) -> None:
    module, other = build(ACTION_SPACES[space]), build(ACTION_SPACES[space])
    inference = ExactInference(module, None)
    module.set_state(other.get_state())
    assert_equal(module, inference, [4, 3], 1, explore=True)
    batches = batches_of(module, [4, 3])
    logits = [ours(one, batches, False)["p0"]["action_dist_inputs"] for one in (inference, ExactInference(other, None))]
    assert np.array_equal(*logits)


def test_parameters_replaced() -> None:
    module = build(Discrete(3))
    inference = ExactInference(module, None)
    module["p0"].pi.net.mlp[0].weight = nn.Parameter(torch.randn(3, 16))
    module["p1"].to(torch.float64).to(torch.float32)
    assert_equal(module, inference, [4, 3], 1, explore=True)


def test_module_replaced_added_removed() -> None:
    module, other = build(Discrete(3)), build(ACTION_SPACES["box"], n_modules=1)["p0"]
    inference = ExactInference(module, None)
    module.remove_module("p0")
    module.add_module("p0", other)
    module.add_module("p2", build(Discrete(3), module_class=WithOwnOutputs, n_modules=1)["p0"])
    assert_equal(module, inference, [4, 3, 2], 1, explore=True)
    module.remove_module("p1")
    assert_equal(module, inference, [4, 3], 1, explore=True)


def add(value: float):
    return lambda module, inputs, output: output + value


def test_hooks_run(rng: np.random.Generator) -> None:
    module = build(Discrete(3))
    inference = ExactInference(module, None)
    module["p0"].encoder.encoder.net.mlp[0].register_forward_hook(add(1.0))
    inference.refresh()
    assert not is_quick(inference)
    assert inference.leaves_input_untouched("p1")
    assert_equal_always(module, rng)


def test_global_hooks_run(rng: np.random.Generator) -> None:
    module = build(Discrete(3))
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None)
    try:
        assert not is_quick(ExactInference(module, None))
        assert_equal_always(module, rng)
    finally:
        handle.remove()
    assert is_quick(ExactInference(module, None))


def replace_layer(module: Any, layer: nn.Module) -> None:
    module.encoder.encoder.net.mlp[1] = layer


class OwnTanh(nn.Tanh):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values) + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module, "_forward", Noting._forward.__get__(module, DefaultPPOTorchRLModule)),
        lambda module: setattr(module.pi, "forward", module.pi._forward),
        lambda module: (
            module.double().float().pi.double() and module.pi.float().half() and module.float().pi.bfloat16()
        ),
        lambda module: replace_layer(module, nn.Dropout()),
        lambda module: replace_layer(module, OwnTanh()),
        lambda module: nn.utils.parametrizations.weight_norm(module.pi.net.mlp[0]),
    ],
    ids=["own_forward", "forward_on_instance", "half_precision", "dropout", "subclass", "weight_norm"],
)
def test_changed_modules_run_by_themselves(change: Any) -> None:
    module = build(Discrete(3))
    change(module["p0"])
    assert not is_quick(ExactInference(module, None))


@pytest.mark.parametrize("layer", [nn.Dropout(), OwnTanh(), nn.Softmax(-1)])
def test_foreign_layers(layer: nn.Module, rng: np.random.Generator) -> None:
    module = build(Discrete(3))
    replace_layer(module["p0"], layer)
    assert_equal_always(module, rng)


@pytest.mark.parametrize("space", ["discrete", "box", "multi_discrete", "tuple"])
def test_nan_raises_as_in_rllib(space: str) -> None:
    module = build(ACTION_SPACES[space])
    with torch.no_grad():
        module["p1"].pi.net.mlp[0].weight[:] = float("nan")
    batches = batches_of(module, [2, 3])
    with pytest.raises(RuntimeError) as want:
        theirs(module, batches, True)
    with pytest.raises(RuntimeError) as got:
        ours(ExactInference(module, None), batches, True)
    assert str(got.value) == str(want.value)
    assert got.value.__notes__ == ["module 'p1': rows [0, 1, 2] have non-finite logits; check its weights and inputs"]


class Says(DefaultPPOTorchRLModule):
    """Gives always the same outputs."""

    outputs: dict[str, Any]

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return dict(self.outputs)


def saying(outputs: dict[str, Any], n_choices: int = 3) -> MultiRLModule:
    module = build(Discrete(n_choices), module_class=Says, n_modules=1)
    module["p0"].outputs = outputs  # type: ignore[assignment]
    return module


def test_infinite_logits_raise_as_in_rllib() -> None:
    """The probabilities are NaN."""
    module = build(Discrete(2), n_modules=1)
    with torch.no_grad():
        module["p0"].pi.net.mlp[0].bias[1] = torch.inf
    for one in (module, saying({Columns.ACTION_DIST_INPUTS: torch.tensor([[0.0, torch.inf]])}, 2)):
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            ours(ExactInference(one, None), batches_of(one, [1]), True)


def test_nan_that_rllib_lets_pass() -> None:
    """A mean that is NaN; the standard deviation isn't."""
    module = build(ACTION_SPACES["box"], free_log_std=True)
    with torch.no_grad():
        module["p0"].pi.net.mlp[0].weight[:] = float("nan")
    batches = batches_of(module, [2, 3])
    torch.manual_seed(1)
    want = theirs(module, batches, True)
    torch.manual_seed(1)
    got = ours(ExactInference(module, None), batches, True)
    for module_id, columns in want.items():  # the signs of NaN may differ
        assert all(np.array_equal(column, got[module_id][key], equal_nan=True) for key, column in columns.items())
    assert np.isnan(got["p0"]["actions"]).all()


def test_choices_ruled_out(rng: np.random.Generator) -> None:
    """-inf among the logits is how action masks are made."""
    quick = build(Discrete(6), n_modules=1)
    with torch.no_grad():
        quick["p0"].pi.net.mlp[0].bias[[0, 4]] = -torch.inf
    assert is_quick(ExactInference(quick, None))
    assert_equal_always(quick, rng)
    logits = torch.randn(40, 6).masked_fill_(torch.rand(40, 6) < 0.5, -torch.inf)
    logits[:, 2] = 1
    module = saying({Columns.ACTION_DIST_INPUTS: logits}, 6)
    for explore in (True, False):
        assert_equal(module, ExactInference(module, None), [40], 1, explore=explore)


def test_outputs_without_rows() -> None:
    def says(outputs: dict[str, Any]) -> None:
        module = saying(outputs)
        ours(ExactInference(module, None), batches_of(module, [3]), True)

    with pytest.raises(ModuleOutputError, match=r"module 'p0': expected 'action_dist_inputs' or 'actions'.*\['x'\]"):
        says({"x": torch.zeros(3)})
    for value in (torch.tensor(1.0), 3, "text"):
        with pytest.raises(ModuleOutputError, match=r"expected output 'x' to have one row per batch row, got"):
            says({Columns.ACTIONS: torch.zeros(3), "x": value})


def test_input_untouched_and_results_kept() -> None:
    module = build(ACTION_SPACES["box"])
    inference = ExactInference(module, None)
    batches = batches_of(module, [3, 3])
    before = batches["p0"][Columns.OBS].clone()
    first = ours(inference, batches, True)["p0"]
    kept = {key: array.copy() for key, array in first.items()}
    ours(inference, batches, True)
    assert torch.equal(batches["p0"][Columns.OBS], before)
    assert all(np.array_equal(first[key], kept[key]) for key in kept)
    assert first["action_dist_inputs"].flags.writeable


def test_results_are_not_the_modules_own_memory() -> None:
    module = build(Discrete(3), module_class=WithOwnActions)
    obs = batches_of(module, [3, 3])
    got = ours(ExactInference(module, None), obs, True)["p0"]
    assert np.array_equal(got["t"], obs["p0"][Columns.OBS].numpy())
    assert not np.shares_memory(got["t"], obs["p0"][Columns.OBS].numpy())


def test_staged_copies(rng: np.random.Generator) -> None:
    """As with modules on another device."""
    module = build(ACTION_SPACES["tuple"])
    inference = ExactInference(module, None)
    for part in inference._parts.values():
        part._transfer = StagedCopy(torch.device("cpu"))
    assert_equal(module, inference, [3, 4], 1, explore=True)


def test_rows_of_shared_memory() -> None:
    """Observations lie anywhere in the store, and so aren't aligned alike."""
    module = build(ACTION_SPACES["box"], obs_space=Box(-1, 1, (3,), np.float32), n_modules=1)
    inference = ExactInference(module, None)
    memory = torch.randn(100, 3)
    for first in range(30):
        shared = memory[first : first + 1 + first % 7]
        got = ours(inference, {"p0": {Columns.OBS: shared}}, False)
        want = theirs(module, {"p0": {Columns.OBS: shared.clone()}}, False)
        assert_same_columns(want["p0"], got["p0"])


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_samplers_at_random(is_deterministic: bool, rng: np.random.Generator) -> None:
    """Seeded runners on the CPU turn torch's deterministic algorithms on."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        for _ in range(200):
            n, k = int(rng.integers(1, 70)), int(rng.integers(1, 40))
            logits = torch.randn(n, 2 * k) * float(rng.choice([0.01, 1, 5]))
            seed = int(rng.integers(2**31))
            for sampler, reference in (
                (CategoricalSampler(), sampling.draw_categorical),
                (CategoricalRows(), sampling.draw_categorical),
                (GaussianSampler(), sampling.draw_gaussian),
                (GaussianRows(), sampling.draw_gaussian),
            ):
                generator = torch.Generator().manual_seed(seed)
                (action,), logp = sampler.explore(logits, generator)
                other = torch.Generator().manual_seed(seed)
                want, want_logp = reference(logits, other)
                assert np.array_equal(action, want) and np.array_equal(logp, want_logp), (n, k, seed)
                assert torch.equal(generator.get_state(), other.get_state())
    finally:
        torch.use_deterministic_algorithms(was_deterministic)


def test_another_torch(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """If torch draws otherwise some day, RLlib's classes are asked."""
    module = build(Discrete(4))
    dist_cls, cpu = module["p0"].get_exploration_action_dist_cls(), torch.device("cpu")
    sampling.equals_torch.cache_clear()
    monkeypatch.setattr(sampling_torch, "LOG_SQRT_2PI", 1.0)
    try:
        assert sampling.sampler_of(dist_cls, cpu) is None
        assert_equal_always(module, rng)
    finally:
        sampling.equals_torch.cache_clear()


class Forgetful(TorchRLModule):
    """Reads a state, and has no get_initial_state()."""

    def setup(self):
        self.layer = nn.Linear(OBS_SIZE, 4)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: batch[Columns.STATE_IN]["h"]}


@pytest.mark.parametrize("explore", [True, False])
def test_errors_in_a_forward_pass_name_module_and_shapes(explore):
    module = build(Discrete(4), module_class=Forgetful, n_modules=1)
    with pytest.raises(KeyError, match="state_in") as raised:
        ExactInference(module, None).answer(batches_of(module, [3]), explore=explore, t=0)
    of_pass, of_state = raised.value.__notes__
    method = "forward_exploration" if explore else "forward_inference"
    assert of_pass == f"in {method}() of module 'p0', with a batch of obs [3, {OBS_SIZE}] of float32"
    assert of_state.startswith("it has no initial state: add a method get_initial_state() that")
