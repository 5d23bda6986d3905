import copy
import re

import gymnasium as gym
import numpy as np
import pytest
import torch

from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.errors import ConfigError
from fastmarl.modules import (
    DefaultModelConfig,
    DefaultRLModule,
    RLModuleSpec,
)

spaces = gym.spaces
SMALL = {"fcnet_hiddens": [16, 8]}
VECTOR = spaces.Box(-1, 1, (4,))
OBSERVATIONS = {
    "vector": VECTOR,
    "float64 vector": spaces.Box(-1, 1, (4,), np.float64),
    "float16 vector": spaces.Box(-1, 1, (4,), np.float16),
    "number": spaces.Box(-1, 1, ()),
    "matrix of bytes": spaces.Box(0, 255, (5, 3), np.uint8),
    "integers": spaces.Box(-9, 9, (3,), np.int32),
    "image": spaces.Box(0, 255, (84, 84, 3), np.uint8),
    "smallest image": spaces.Box(0, 255, (16, 40, 1), np.uint8),
    "grid": spaces.Box(0, 255, (13, 13, 5), np.uint8),
    "float grid": spaces.Box(0, 1, (20, 20, 2)),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4], start=[0, -1, 5]),
    "multi-discrete of rank 2": spaces.MultiDiscrete([[3, 2], [2, 2]]),
    "binary": spaces.MultiBinary([2, 3]),
    "nested": spaces.Dict(
        position=VECTOR,
        camera=spaces.Box(0, 255, (20, 20, 3), np.uint8),
        more=spaces.Tuple([spaces.Discrete(3), spaces.Dict(x=spaces.Box(-1, 1, (2, 2)))]),
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,)),
    "nested": spaces.Dict(
        a=spaces.Discrete(3), b=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])])
    ),
}
EACH_OBSERVATION = pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS.keys())


def observations(space: gym.Space, n: int, seed: int = 0):
    """Tensors [n, ...] as the runner gives them."""
    space.seed(seed)
    samples = [flatten_struct(space.sample()) for _ in range(n)]
    arrays = [np.stack([np.asarray(sample[i][1]) for sample in samples]) for i in range(len(samples[0]))]
    tensors = [torch.from_numpy(array) for array in arrays]
    return RowLayout(space).nest([tensor.float() if tensor.dtype == torch.float64 else tensor for tensor in tensors])


def default_module(observation_space=VECTOR, action_space=ACTIONS["discrete"], **model_config) -> DefaultRLModule:
    torch.manual_seed(0)
    return DefaultRLModule(observation_space, action_space, model_config={**SMALL, **model_config})


@EACH_OBSERVATION
@pytest.mark.parametrize("n", [1, 3])
def test_default_net_reads_every_observation_space(space, n):
    module = default_module(space)
    batch = {Columns.OBS: observations(space, n)}
    before = [leaf.clone() for _, leaf in flatten_struct(batch)]
    outputs = module.forward_exploration(batch, t=0)
    assert outputs[Columns.ACTION_DIST_INPUTS].shape == (n, 3)
    assert outputs[Columns.VF_PREDS].shape == (n,)
    assert {value.dtype for value in outputs.values()} == {torch.float32}
    for (_, leaf), old in zip(flatten_struct(batch), before, strict=True):
        assert torch.equal(leaf, old)
        assert leaf._version == 0


@EACH_OBSERVATION
def test_every_part_of_an_observation_counts(space):
    """Other values of one leaf give other outputs, and a row does not depend on its neighbours."""
    module = default_module(space, fcnet_activation="linear")
    obs, others = observations(space, 4), observations(space, 4, seed=9)
    logits = module({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
    for i in range(len(flatten_struct(obs))):
        leaves = [
            other if i == j else leaf
            for j, ((_, leaf), (_, other)) in enumerate(zip(flatten_struct(obs), flatten_struct(others), strict=True))
        ]
        changed = module({Columns.OBS: RowLayout(space).nest(leaves)})[Columns.ACTION_DIST_INPUTS]
        assert not torch.equal(logits, changed)
    alone = module({Columns.OBS: map_struct(lambda leaf: leaf[2:3], obs)})[Columns.ACTION_DIST_INPUTS]
    torch.testing.assert_close(alone[0], logits[2], rtol=1e-4, atol=1e-4)


def test_discrete_observations_become_one_hot():
    module = default_module(spaces.MultiDiscrete([3, 2], start=[0, -1]))
    encoded = module.trunk[0](torch.tensor([[2, -1], [0, 0]]))
    assert encoded.tolist() == [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]
    encoded = default_module(OBSERVATIONS["discrete"]).trunk[0](torch.tensor([2, 6]))
    assert encoded.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]


def test_bytes_are_scaled():
    for name in ("matrix of bytes", "image"):
        space = OBSERVATIONS[name]
        encoder = default_module(space).trunk[0]
        if name == "image":
            encoder.convolutions = torch.nn.Identity()
        assert encoder(torch.full((1, *space.shape), 255, dtype=torch.uint8)).unique().tolist() == [1.0]


@pytest.mark.parametrize("height", [16, 17, 35, 84, 210])
def test_default_filters_fit_every_image(height):
    space = spaces.Box(0, 255, (height, 2 * height, 3), np.uint8)
    module = default_module(space)
    assert module({Columns.OBS: observations(space, 2)})[Columns.VF_PREDS].shape == (2,)
    n_features = module.trunk[1].in_features
    assert 1 <= n_features <= 64 * 4 * 12  # twice as wide as high, and some more from rounding


def test_images_are_channels_last():
    """Compare with the same convolution of channels-first pixels."""
    module = default_module(OBSERVATIONS["image"], conv_filters=[[4, [8, 6], [4, 2]]], conv_activation="tanh")
    image = observations(OBSERVATIONS["image"], 2)
    encoder = module.trunk[0]
    convolution = encoder.convolutions[0]
    assert convolution.weight.shape == (4, 3, 8, 6)
    expected = torch.tanh(convolution(image.permute(0, 3, 1, 2).contiguous() / 255)).flatten(1)
    torch.testing.assert_close(encoder(image), expected)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("options", [{}, {"vf_share_layers": False}, {"head_fcnet_hiddens": [7]}], ids=str)
def test_gradients_reach_every_weight(name, options):
    module = default_module(action_space=ACTIONS[name], **options)
    outputs = module.forward_train({Columns.OBS: observations(VECTOR, 5)})
    distribution = module.get_train_action_dist_cls().from_logits(outputs[Columns.ACTION_DIST_INPUTS])
    (distribution.logp(distribution.sample()).sum() + outputs[Columns.VF_PREDS].sum()).backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert (parameter.grad != 0).any()


def test_layers_are_shared_or_not():
    policy_loss = {}
    for shared in (True, False):
        module = default_module(vf_share_layers=shared)
        module({Columns.OBS: observations(VECTOR, 5)})[Columns.VF_PREDS].sum().backward()
        policy_loss[shared] = module.trunk[0].weight.grad
    assert policy_loss[True] is not None
    assert policy_loss[False] is None


def test_a_net_for_acting_only_has_no_value_head():
    module = DefaultRLModule(VECTOR, ACTIONS["discrete"], inference_only=True, model_config=SMALL)
    assert set(module({Columns.OBS: observations(VECTOR, 2)})) == {Columns.ACTION_DIST_INPUTS}
    assert not [name for name in module.state_dict() if "vf" in name]
    whole = default_module(vf_share_layers=False)
    module.set_state(whole.get_state())
    assert torch.equal(module.pi.weight, whole.pi.weight)
    for name in ("trunk.8.weight", "norm.weight"):
        with pytest.raises(ConfigError, match=rf"{re.escape(name)} is unknown"):
            module.set_state({**whole.get_state(), name: np.zeros(3, np.float32)})


def test_free_log_std_does_not_depend_on_the_observation():
    module = default_module(action_space=ACTIONS["box"], free_log_std=True)
    logits = module({Columns.OBS: observations(VECTOR, 5)})[Columns.ACTION_DIST_INPUTS]
    assert logits.shape == (5, 4)
    assert (logits[:, 2:] == 0).all()
    assert (logits[0, :2] != logits[1, :2]).all()
    logits[:, 2].sum().backward()
    assert [name for name, p in module.named_parameters() if p.grad is not None and (p.grad != 0).any()] == [
        "pi.1.log_std"
    ]
    with pytest.raises(ConfigError, match="free_log_std=True needs a Box action space"):
        default_module(free_log_std=True)


MASKED = {
    "PettingZoo": ("observation", spaces.Box(0, 1, (3,), np.int8), spaces.Discrete(3)),
    "RLlib": ("observations", spaces.MultiBinary(3), spaces.Discrete(3, start=1)),
    "short": ("obs", spaces.Box(0, 1, (3,)), spaces.Discrete(3)),
    "parts in a row": ("observation", spaces.MultiBinary(5), spaces.MultiDiscrete([3, 2])),
    "parts in rows": ("observation", spaces.MultiBinary([2, 3]), spaces.MultiDiscrete([3, 3])),
    "tuple": ("obs", spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2)]), spaces.MultiDiscrete([3, 2])),
}


@pytest.mark.parametrize(("key", "mask_space", "action_space"), MASKED.values(), ids=MASKED.keys())
@pytest.mark.parametrize("use_lstm", [False, True], ids=["", "lstm"])
def test_masked_actions_are_never_chosen(key, mask_space, action_space, use_lstm):
    space = spaces.Dict({key: VECTOR, "action_mask": mask_space})
    module = default_module(space, action_space, use_lstm=use_lstm, lstm_cell_size=8)
    obs = observations(space, 300)
    allowed = torch.cat([leaf.flatten(1) for _, leaf in flatten_struct(obs["action_mask"])], -1) != 0
    outputs = run(module, obs)
    logits = outputs[Columns.ACTION_DIST_INPUTS]
    unmasked = copy.deepcopy(obs)
    unmasked["action_mask"] = map_struct(torch.ones_like, obs["action_mask"])
    free = run(module, unmasked)[Columns.ACTION_DIST_INPUTS]
    assert torch.equal(logits[allowed], free[allowed])
    assert (logits[~allowed] == torch.finfo(torch.float32).min).all()
    assert run(module, unmasked)[Columns.VF_PREDS].equal(outputs[Columns.VF_PREDS])  # the mask is not observed
    actions, logp = module.get_exploration_action_dist_cls().sample_and_logp(logits)
    assert logp.isfinite().all()
    parts = [3] if isinstance(action_space, spaces.Discrete) else action_space.nvec.tolist()
    for action, allowed_part in zip(actions.reshape(300, -1).T, allowed.split(parts, -1), strict=True):
        possible = allowed_part.any(-1)
        assert allowed_part.gather(-1, action.unsqueeze(-1)).squeeze(-1)[possible].all()


def run(module: DefaultRLModule, obs):
    """Outputs for single steps, without a time axis."""
    if not module.is_stateful():
        return module({Columns.OBS: obs})
    n = len(flatten_struct(obs)[0][1])
    state = map_struct(lambda leaf: torch.from_numpy(leaf).expand(n, *leaf.shape), module.get_initial_state())
    batch = {Columns.OBS: map_struct(lambda leaf: leaf.unsqueeze(1), obs), Columns.STATE_IN: state}
    outputs = module.forward_exploration(batch)
    return {key: value if key == Columns.STATE_OUT else value.squeeze(1) for key, value in outputs.items()}


def test_a_mask_of_another_size_is_refused():
    space = spaces.Dict(observation=VECTOR, action_mask=spaces.MultiBinary(4))
    with pytest.raises(ConfigError, match=r"has 4 entries, but Discrete.3. needs 3"):
        default_module(space)
    module = default_module(space, ACTIONS["box"])  # nothing to mask: an observation like any other
    assert module({Columns.OBS: observations(space, 2)})[Columns.VF_PREDS].shape == (2,)


def explores(self, batch, **kwargs):
    """With equal logits for all actions."""
    return {Columns.ACTION_DIST_INPUTS: torch.zeros_like(self._forward(batch)[Columns.ACTION_DIST_INPUTS])}


@pytest.mark.parametrize("name", ["_forward_exploration", "_forward_inference", "_forward_train", "_forward",
                                  "forward_exploration", "forward_inference"])  # fmt: skip
def test_outputs_of_a_subclass_are_masked_like_those_of_any_module(name):
    space = spaces.Dict(observation=VECTOR, action_mask=spaces.MultiBinary(3))
    assert DefaultRLModule(space, ACTIONS["discrete"]).masks_actions
    assert not type("Own", (DefaultRLModule,), {name: explores})(space, ACTIONS["discrete"]).masks_actions


@pytest.mark.parametrize("name", ["vector", "nested", "image"])
@pytest.mark.parametrize("shared", [True, False])
def test_lstm_over_time_equals_step_by_step(name, shared):
    space = OBSERVATIONS[name]
    module = default_module(space, use_lstm=True, lstm_cell_size=6, vf_share_layers=shared)
    assert module.is_stateful()
    n, steps = 2, 3
    obs = map_struct(lambda leaf: leaf.unflatten(0, (n, steps)), observations(space, n * steps))
    state = map_struct(lambda leaf: torch.from_numpy(leaf).expand(n, *leaf.shape), module.get_initial_state())
    whole = module.forward_train({Columns.OBS: obs, Columns.STATE_IN: state})
    assert whole[Columns.ACTION_DIST_INPUTS].shape == (n, steps, 3)
    assert whole[Columns.VF_PREDS].shape == (n, steps)
    for t in range(steps):
        now = map_struct(lambda leaf, t=t: leaf[:, t : t + 1], obs)
        outputs = module.forward_exploration({Columns.OBS: now, Columns.STATE_IN: state}, t=t)
        state = outputs[Columns.STATE_OUT]
        for key in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS):
            torch.testing.assert_close(outputs[key][:, 0], whole[key][:, t], rtol=1e-4, atol=1e-5)
    for (path, leaf), (_, initial) in zip(
        flatten_struct(whole[Columns.STATE_OUT]), flatten_struct(module.get_initial_state()), strict=True
    ):
        assert leaf.shape == (n, *initial.shape), path
        assert (leaf != 0).all()
    assert set(state) == ({"h", "c"} if shared else {"actor", "critic"})


@pytest.mark.parametrize(
    ("model_config", "says"),
    [
        ({"fcnet_hidden": [8]}, "unknown option 'fcnet_hidden' in model_config .*; did you mean 'fcnet_hiddens'"),
        ({"xyz": 1}, "unknown option 'xyz' in model_config of a default network; available: .*use_lstm"),
        ({"fcnet_activation": "tanhh"}, "fcnet_activation must be one of .*'tanh'.*, got 'tanhh'"),
        ({"fcnet_hiddens": 64}, "fcnet_hiddens must be a list of positive integers, got 64"),
        ({"head_fcnet_hiddens": [0]}, "head_fcnet_hiddens must be a list of positive integers, got"),
        ({"lstm_cell_size": -1}, "lstm_cell_size must be a positive integer, got -1"),
        ({"conv_filters": [[16, 4]]}, "conv_filters must be .out channels, kernel, stride., got .16, 4."),
        ({"conv_filters": [[16, 4, 2]]}, "conv_filters needs a Box of shape"),
        (["fcnet_hiddens"], "model_config must be a dict or a DefaultModelConfig"),
    ],
)
def test_bad_options_are_named(model_config, says):
    with pytest.raises(ConfigError, match=says):
        DefaultRLModule(VECTOR, ACTIONS["discrete"], model_config=model_config)


def test_spaces_the_default_net_cannot_handle_are_named():
    with pytest.raises(ConfigError, match=r"do not support Text.*set module_class in the RLModuleSpec"):
        default_module(spaces.Dict(a=VECTOR, b=spaces.Text(4)))
    with pytest.raises(ConfigError, match="need an observation_space and an action_space"):
        RLModuleSpec().build()
    with pytest.raises(ConfigError, match=r"conv_filters\[1\] has kernel \(9, 9\), but its input has only 8 x 8"):
        default_module(spaces.Box(0, 255, (16, 16, 1), np.uint8), conv_filters=[[4, 2, 2], [4, 9, 1]])


def test_options_may_be_an_object():
    config = DefaultModelConfig(fcnet_hiddens=[5], fcnet_activation="relu")
    module = DefaultRLModule(VECTOR, ACTIONS["discrete"], model_config=config)
    assert [type(layer) for layer in module.trunk] == [torch.nn.Linear, torch.nn.ReLU]
    assert module.trunk[0].out_features == 5
