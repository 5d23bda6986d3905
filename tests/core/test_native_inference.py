"""Native inference: which modules it takes over, and that they and the runner then answer as with torch."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.masked_env import MaskedEnv
from support.scripted import Scripted, counting, sine, sines
from torch import nn

import fastmarl
from fastmarl.bench.bare_network import BareNetwork
from fastmarl.connectors import EnvToModuleConnector, FrameStacking
from fastmarl.core.modules.encoders import Entries, Flat
from fastmarl.core.nets import dense_layers
from fastmarl.core.nets.native import NativeModule
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.modules import DefaultRLModule, RLModule
from fastmarl.testing import DyingAgentsEnv

CPU = torch.device("cpu")
BOX = gym.spaces.Box(-9, 9, (5,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)


BYTES = gym.spaces.Box(0, 255, (4,), np.uint8)
MULTI = gym.spaces.MultiDiscrete([3, 2])
ENTRIES = gym.spaces.Dict(
    position=BOX, grid=gym.spaces.Box(-9, 9, (2, 3), np.float32), lights=gym.spaces.MultiBinary(4)
)
MASKS = [
    gym.spaces.Box(0, 1, (3,), np.int8),
    gym.spaces.MultiBinary((3, 1)),
    *(
        gym.spaces.Box(0, 1, (3,), dtype)
        for dtype in (np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64)
    ),
]


def masked_by(mask, observation=BOX, **others):
    return gym.spaces.Dict({"action_mask": mask, "observation": observation, **others})


def make_module(
    module_class=DefaultRLModule, space=BOX, action_space=DISCRETE, *, inference_only=False, **model_config
):
    config = {"fcnet_hiddens": (8, 8), **model_config}
    module = module_class(space, action_space, inference_only=inference_only, model_config=config)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def native_of(module, space=None, **options):
    layout = RowLayout(space or module.observation_space, keep_float64=False)
    return NativeModule(module, layout, CPU, **{"allowed": True, **options})


def leaves_of(space, n):
    """Those of n random observations; half of a mask's numbers are 0."""
    layout, rng = RowLayout(space, keep_float64=False), np.random.default_rng(n)
    leaves = []
    for leaf, leaf_space in zip(layout.leaves, leaf_spaces(space), strict=True):
        leaf_space.seed(n)
        values = np.stack([leaf_space.sample() for _ in range(n)]).astype(leaf.dtype)
        if leaf.path[:1] == ("action_mask",):
            values[rng.random(values.shape) < 0.5] = 0
        leaves.append(values)
    return leaves


def check_same(module, compiled, n=7):
    space = module.observation_space
    leaves = leaves_of(space, n)
    obs = RowLayout(space).nest([torch.from_numpy(leaf.copy()) for leaf in leaves])
    states = map_struct(lambda leaf: torch.randn(n, *leaf.shape), module.get_initial_state())
    batch = {"obs": map_struct(lambda leaf: leaf[:, None], obs), "state_in": states} if states else {"obs": obs}
    with torch.inference_mode():
        expected = module.forward_exploration(batch, t=0)
    logits, values, next_states = compiled.forward(leaves, [leaf.numpy() for _, leaf in flatten_struct(states)])
    assert_close(logits, expected["action_dist_inputs"].numpy().reshape(n, -1))
    if "vf_preds" in expected:
        assert_close(values, expected["vf_preds"].numpy().reshape(n))
    else:
        assert values is None
    for state, (_, wanted) in zip(next_states, flatten_struct(expected.get("state_out", {})), strict=True):
        assert_close(state, wanted.numpy())


def assert_close(got, expected):
    """Up to 3e-6 of the largest, or of 1, as large as what was added up may be: sums of numbers that cancel out are not
    exact in torch either, nor is the one sum of a batch of one. What is ruled out is so exactly."""
    ruled_out = expected == np.finfo(np.float32).min
    assert np.array_equal(got == np.finfo(np.float32).min, ruled_out)
    got, expected = got[~ruled_out], expected[~ruled_out]
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=3e-6 * max(1.0, np.abs(expected).max(initial=0.0)))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("n", [1, 3, 16, 100, 512])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fcnet_activation": "relu", "vf_share_layers": False},
        {"fcnet_activation": "silu", "head_fcnet_hiddens": (7, 6), "head_fcnet_activation": "tanh"},
        {"fcnet_hiddens": (), "vf_share_layers": False},
        {"fcnet_activation": "linear", "inference_only": True},
        {"action_space": ACTIONS, "free_log_std": True},
        {"action_space": ACTIONS, "vf_share_layers": False, "fcnet_hiddens": (70, 33, 20)},
        {"space": gym.spaces.Box(-9, 9, (40,), np.float64)},
        {"space": gym.spaces.Box(-1, 1, (2, 2), np.float32), "fcnet_activation": "gelu"},
        {"space": gym.spaces.Box(0, 255, (2, 2, 3), np.uint8), "vf_share_layers": False},
        {"space": gym.spaces.Box(-2, 3, (11,), np.int8)},
        *({"space": masked_by(mask)} for mask in MASKS),
        {"space": masked_by(MASKS[0], gym.spaces.Box(-9, 9, (2, 3), np.float64)), "vf_share_layers": False},
        {"space": masked_by(MASKS[0], gym.spaces.Box(0, 255, (4, 2), np.uint8))},
        {"space": masked_by(gym.spaces.MultiBinary(5)), "action_space": MULTI},
        {"space": masked_by(gym.spaces.Tuple(map(gym.spaces.MultiBinary, (3, 2)))), "action_space": MULTI},
        {"space": masked_by(MASKS[0], ENTRIES)},
        {"space": masked_by(MASKS[0], speed=BOX), "vf_share_layers": False},
        {"space": masked_by(gym.spaces.MultiBinary(2)), "action_space": ACTIONS},
        {"space": gym.spaces.Dict(a=BOX, action_mask=MASKS[1])},
        {"space": ENTRIES, "inference_only": True},
        {"use_lstm": True, "lstm_cell_size": 7},
        {"use_lstm": True, "lstm_cell_size": 17, "vf_share_layers": False, "space": masked_by(MASKS[0])},
        {"use_gru": True, "gru_cell_size": 16, "fcnet_hiddens": (), "action_space": ACTIONS, "free_log_std": True},
        {"use_gru": True, "gru_cell_size": 1, "vf_share_layers": False, "space": ENTRIES, "inference_only": True},
        {"use_gru": True, "gru_cell_size": 3, "vf_share_layers": False, "space": BYTES},
        {"space": gym.spaces.Tuple((BOX, ENTRIES, gym.spaces.Box(-9, 9, (), np.int64)))},
    ],
    ids=str,
)
def test_default_nets_give_the_same(options, n):
    torch.manual_seed(n)
    module = make_module(**options)
    compiled = native_of(module)
    assert compiled.backend == "native" and compiled.max_rows > 10_000
    check_same(module, compiled, n)


class Normalized(DefaultRLModule):
    """A layer normalisation in each place where one may stand; `shared` from model_config."""

    def setup(self):
        super().setup()
        norm = nn.LayerNorm(8, eps=0.01)
        self.trunk = nn.Sequential(
            nn.LayerNorm(5), nn.Linear(5, 8), norm, nn.Tanh(), nn.Linear(8, 8), nn.ReLU(),
            nn.LayerNorm(8, elementwise_affine=False),
        )  # fmt: skip
        if self.vf_trunk is not None:
            self.vf_trunk = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8, bias=False), nn.SiLU())


@pytest.mark.parametrize("n", [3, 100])
@pytest.mark.parametrize("vf_share_layers", [True, False])
def test_layer_normalisation_gives_the_same(vf_share_layers, n):
    torch.manual_seed(n)
    module = make_module(Normalized, vf_share_layers=vf_share_layers)
    compiled = native_of(module)
    assert compiled.backend == "native"
    check_same(module, compiled, n)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    check_same(module, compiled, n)


class Approximate(DefaultRLModule):
    """GELU by torch's other formula."""

    def setup(self):
        super().setup()
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.GELU(approximate="tanh"))


class OwnLayers(DefaultRLModule):
    """Only the layers differ, so it is the same kind of net."""

    def setup(self):
        super().setup()
        self.trunk = nn.Sequential(nn.Linear(5, 6, bias=False), nn.Sequential(nn.ELU(0.7), nn.Linear(6, 4)), nn.ReLU())
        self.pi = nn.Linear(4, 3)
        self.vf = nn.Sequential(nn.Linear(4, 2), nn.SiLU(), nn.Linear(2, 1))


def test_a_subclass_with_layers_of_its_own_gives_the_same():
    module = make_module(OwnLayers)
    compiled = native_of(module)
    assert compiled.backend == "native"
    check_same(module, compiled)


# Modules that are not taken over.


class Scaled(DefaultRLModule):
    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        return {**outputs, "action_dist_inputs": 2 * outputs["action_dist_inputs"]}


class Scheduled(DefaultRLModule):
    def forward_exploration(self, batch, t=None, **kwargs):
        return super().forward_exploration(batch, t=t, **kwargs)


class Looked(DefaultRLModule):
    def __getattr__(self, name):
        return super().__getattr__(name)


class Foreign(RLModule):
    pass


class ScaledFloats(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk = nn.Sequential(Flat((5,), 0.5), nn.Linear(5, 8))


class SeesLess(DefaultRLModule):
    """Its value function sees less than its policy, which sees less than there is."""

    def setup(self):
        space, self.observation_space = self.observation_space, ENTRIES
        super().setup()
        self.observation_space = space
        self.vf_trunk = nn.Sequential(Entries(["position"], [nn.Identity()]), nn.Linear(5, 8))


class WideHead(DefaultRLModule):
    def setup(self):
        super().setup()
        self.pi = nn.Linear(8, 4)


class HookedEntry(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk[0].encoders[0].register_forward_hook(lambda *_: None)


class BeginsElsewhere(DefaultRLModule):
    def get_initial_state(self):
        return {"h": np.ones(256, np.float32)}


class TwoLayers(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)


class OtherWeights(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk.lstm._flat_weights = [nn.Parameter(each.detach().clone()) for each in self.trunk.lstm._flat_weights]


class HookedCell(DefaultRLModule):
    def setup(self):
        super().setup()
        self.trunk.lstm.register_forward_hook(lambda *_: None)


WITH_TEXT = gym.spaces.Dict({**ENTRIES.spaces, "told": gym.spaces.Text(3)})
IMAGES = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: make_module(Scaled), "Scaled overrides _forward()"),
        (lambda: make_module(Scheduled), "overrides forward_exploration()"),
        (lambda: make_module(Looked), "overrides __getattr__()"),
        (lambda: Foreign(BOX, DISCRETE), "Foreign is not a DefaultRLModule"),
        (lambda: make_module(BeginsElsewhere, use_gru=True), "overrides get_initial_state()"),
        (lambda: make_module(TwoLayers, use_lstm=True), "LSTM(8, 256, num_layers=2"),
        (lambda: make_module(OtherWeights, use_lstm=True), "computes with weights other than its parameters"),
        (lambda: make_module(HookedCell, use_lstm=True), "LSTM has hooks"),
        (lambda: make_module(space=IMAGES), "does not flatten observations"),
        (lambda: make_module(space=gym.spaces.Box(0, 9, (3,), np.int64)), "not a Box of floats or bytes"),
        (lambda: make_module(Approximate), "GELU"),
        (lambda: make_module(space=gym.spaces.Dict(a=BOX, b=DISCRETE)), "OneHot as one of several encoders"),
        (lambda: make_module(space=gym.spaces.Dict(a=BOX, b=BYTES)), "Flat as one of several encoders"),
        (lambda: make_module(ScaledFloats), "does not flatten observations"),
        (lambda: make_module(SeesLess, ENTRIES, vf_share_layers=False), "reads the observations differently"),
        (lambda: make_module(WideHead, masked_by(MASKS[0])), "action mask differs from its number of logits, 4"),
        (lambda: make_module(SeesLess, WITH_TEXT), "some parts of the observations are not arrays"),
        (lambda: make_module(HookedEntry, ENTRIES), "Identity has hooks"),
        (lambda: make_module().double(), "float32"),
    ],
)
def test_other_modules_are_left_to_torch(make, reason):
    compiled = native_of(make())
    assert compiled.backend.startswith("torch: ") and reason in compiled.backend
    assert compiled.max_rows == 0


def test_it_can_be_ruled_out():
    assert native_of(make_module(), allowed=False).backend == "torch: native_inference is False"
    other = NativeModule(make_module(), RowLayout(BOX), torch.device("meta"), allowed=True)
    assert "meta" in other.backend
    integers = RowLayout(gym.spaces.Box(0, 9, (5,), np.int64))
    assert "not a Box of floats" in NativeModule(make_module(), integers, CPU, allowed=True).backend
    module = make_module(space=masked_by(MASKS[-1]))  # doubles that are no 0 may be 0 in the floats that torch gets
    kept = NativeModule(module, RowLayout(module.observation_space), CPU, allowed=True)
    assert "action mask has dtype float64" in kept.backend


def replace_method(module):
    module.forward_inference = module.forward_inference


def replace_forward_of_a_layer(module):
    module.trunk[1].forward = torch.sin


def add_hook(module):
    module.pi.register_forward_hook(lambda *_: None)


def add_backward_hook(module):
    module.trunk.register_full_backward_hook(lambda *_: None)


def parametrize(module):
    nn.utils.parametrizations.orthogonal(module.trunk[0])


def normalize_batches(module):
    module.trunk.append(nn.BatchNorm1d(8))


def normalize_parts(module):
    module.trunk.append(nn.LayerNorm((8, 1)))


def begin_with_an_activation(module):
    module.pi = nn.Sequential(nn.Tanh(), nn.Linear(8, 3))


def end_with_two_values(module):
    module.vf = nn.Linear(8, 2)


def transpose(module):
    module.trunk[2].weight = nn.Parameter(torch.randn(8, 8).t())


def compile_a_layer(module):
    module.trunk._compiled_call_impl = lambda inputs: inputs


CHANGES = [
    replace_method,
    replace_forward_of_a_layer,
    add_hook,
    add_backward_hook,
    parametrize,
    normalize_batches,
    normalize_parts,
    begin_with_an_activation,
    end_with_two_values,
    transpose,
    compile_a_layer,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_that_torch_would_see_gives_the_module_back_to_torch(change):
    module = make_module()
    compiled = native_of(module)
    change(module)
    compiled.renew()
    assert compiled.backend.startswith("torch: ") and compiled.max_rows == 0


def test_a_replaced_class_method_gives_the_module_back_to_torch(monkeypatch):
    compiled = native_of(make_module())
    monkeypatch.setattr(DefaultRLModule, "_forward", Scaled._forward)
    compiled.renew()
    assert "overrides _forward()" in compiled.backend


def test_a_hook_that_is_gone_is_not_in_the_way():
    module = make_module()
    hook = module.pi.register_forward_hook(lambda *_: None)
    compiled = native_of(module)
    hook.remove()
    compiled.renew()
    assert compiled.backend == "native"
    check_same(module, compiled)


# Weights.


def train(module):
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    sum(output.square().sum() for output in module({"obs": torch.randn(4, 5)}).values()).backward()
    optimizer.step()


def set_state(module):
    module.set_state(make_module().get_state())


@pytest.mark.parametrize("change", [train, set_state])
def test_weights_changed_in_place_are_seen_at_once(change):
    module = make_module()
    compiled = native_of(module)
    change(module)
    check_same(module, compiled)


def replace_parameter(module):
    module.trunk[0].weight = nn.Parameter(torch.randn_like(module.trunk[0].weight))


def replace_data(module):
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)


def replace_layer(module):
    module.trunk[2] = nn.Linear(8, 8)


def there_and_back(module):
    module.double().float()


def share_memory(module):
    module.share_memory()


def assign_state(module):
    module.load_state_dict({name: torch.randn_like(value) for name, value in module.state_dict().items()}, assign=True)


def look_at_other_memory(module):
    for parameter in module.parameters():
        parameter.data = torch.randn(2, *parameter.shape)[1]


def replace_free_log_std(module):
    module.pi[1].log_std = nn.Parameter(torch.randn(2))


MOVES = [
    replace_parameter,
    replace_data,
    replace_layer,
    there_and_back,
    share_memory,
    assign_state,
    look_at_other_memory,
    replace_free_log_std,
]


@pytest.mark.parametrize("change", MOVES, ids=lambda change: change.__name__)
def test_weights_that_were_moved_or_replaced_are_found_before_the_next_pass(change):
    module = make_module(action_space=ACTIONS, free_log_std=True)
    compiled = native_of(module)
    change(module)
    check_same(module, compiled)
    assert compiled.backend == "native"


def to_half(module):
    module.half()


def to_meta(module):
    module.to("meta")


def transpose_in_place(module):
    module.trunk[2].weight.data = module.trunk[2].weight.data.t()


def reshape(module):
    module.trunk[0].weight.data = module.trunk[0].weight.data.reshape(5, 8)


def compute(module):
    weight = module.trunk[0].weight.detach()
    del module.trunk[0].weight
    module.trunk[0].weight = weight


@pytest.mark.parametrize(
    "change", [parametrize, normalize_batches, transpose, transpose_in_place, reshape, to_half, to_meta, compute]
)
def test_a_layer_that_becomes_unknown_is_found_before_the_next_pass(change):
    module = make_module()
    compiled = native_of(module)
    change(module)
    assert compiled.forward([np.ones((2, 5), np.float32)]) is None and compiled.backend.startswith("torch: ")


def test_training_in_place_is_no_change():
    module = make_module()
    compiled = native_of(module)
    net = compiled._net
    train(module)
    check_same(module, compiled)
    module.trunk[0].weight.requires_grad_(False)
    check_same(module, compiled)
    assert compiled._net is net


def test_nets_are_not_rebuilt_without_need():
    compiled = native_of(make_module())
    net = compiled._net
    compiled.renew()
    assert compiled._net is net


@pytest.mark.parametrize(("best", "threads"), [("plain", 1), ("avx2", 3)])
def test_large_batches_are_left_to_a_quicker_torch(monkeypatch, best, threads):
    monkeypatch.setattr(dense_layers, "BEST", best)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    small, large = (native_of(make_module(fcnet_hiddens=(n, n))).max_rows for n in (64, 256))
    assert 0 < large < small < 100_000


# The runner.


def make_runner(**options):
    defaults = {"env": sines(), "model_config": {"fcnet_hiddens": [8, 8]}, "num_envs_per_env_runner": 2, "seed": 1}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **options}))


KEYS = ("actions", "action_logp", "vf_preds", "action_dist_inputs")


def recorded(runner, **options):
    """The columns of all agents, one behind the other; those that there are."""
    columns = {key: [] for key in KEYS}
    for chunk in runner.sample(num_timesteps=60, **options):
        for agent in chunk.agent_episodes.values():
            actions = agent.get_actions()
            columns["actions"].append(np.column_stack(actions) if isinstance(actions, tuple) else actions)
            for key in set(KEYS[1:]).intersection(agent.extra_model_output_keys):
                columns[key].append(agent.get_extra_model_outputs(key))
    return {key: np.concatenate(parts) for key, parts in columns.items() if parts}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for key in got:
        assert got[key].dtype == expected[key].dtype, key
        np.testing.assert_allclose(got[key], expected[key], rtol=1e-5, atol=1e-5, err_msg=key)


MASK_INFO = {"action_mask": np.array([0, 1, 1])}
GRID = {"size": 4, "num_food": 3, "num_hazards": 1, "max_steps": 9}


class NarrowsMasks(EnvToModuleConnector):
    """For acting only: what is second of what is legal is not, to the module."""

    per_agent_state = ()
    records = False

    def __call__(self, obs, rows):
        legal = obs["action_mask"] != 0
        return {**obs, "action_mask": (legal & (legal.cumsum(1) != 2)).astype(np.int8)}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"env": sines(info=MASK_INFO)},
        {"env": sines(action_space=MULTI)},
        {"env": sines(action_space=ACTIONS)},
        {"env": sines(action_space=gym.spaces.Tuple((DISCRETE, ACTIONS)))},
        {"env_to_module_connector": FrameStacking(num_frames=2)},
        {"model_config": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}},
        {"model_config": {"fcnet_hiddens": [8], "use_gru": True, "gru_cell_size": 4, "vf_share_layers": False}},
        {"rl_module_spec": fastmarl.RLModuleSpec(inference_only=True)},
        {"env": "fastmarl.gridworld", "env_config": GRID},
        {"env": "fastmarl.gridworld", "env_config": GRID, "env_to_module_connector": FrameStacking(num_frames=2)},
        {"env": "fastmarl.gridworld", "env_config": GRID, "env_to_module_connector": [NarrowsMasks()]},
        {"env": MaskedEnv, "env_config": {"space": "multi_discrete", "place": "action_mask", "form": "parts"}},
        {"env": MaskedEnv, "env_config": {"space": "discrete", "place": "avail_actions", "form": "float64"}},
    ],
    ids=[
        "plain",
        "masks",
        "multi",
        "box",
        "tuple",
        "stacked",
        "lstm",
        "gru",
        "inference_only",
        "grid",
        "grid, stacked",
        "grid, narrowed",
        "masks in parts",
        "masks of doubles",
    ],
)
def test_a_runner_samples_the_same_with_torch_and_without(options, explore):
    with_torch, without = make_runner(**options, native_inference=False), make_runner(**options)
    assert without.inference_backends == {"default_policy": "native"}
    assert with_torch.inference_backends == {"default_policy": "torch: native_inference is False"}
    for _ in range(2):
        assert_same(recorded(without, explore=explore), recorded(with_torch, explore=explore))


def test_masks_in_infos_hold():
    columns = recorded(make_runner(env=sines(info=MASK_INFO)))
    first = columns["action_dist_inputs"][:, 0] > -1e30
    assert 0 < first.sum() < len(first) / 3  # only where an episode begins: reset() gives no info
    assert columns["actions"][~first].all()


def test_batches_too_large_for_it_go_through_torch(monkeypatch):
    expected = recorded(make_runner())
    monkeypatch.setattr(dense_layers, "BEST", "plain")
    monkeypatch.setattr(dense_layers, "MOST_PLAIN", 0)
    runner = make_runner()
    assert runner.inference_backends == {"default_policy": "native"}
    assert_same(recorded(runner), expected)


@pytest.mark.parametrize("env", [sines(), "fastmarl.gridworld"], ids=["scripted", "gridworld"])
def test_torch_is_not_called(monkeypatch, env):
    runner = make_runner(env=env)
    monkeypatch.setattr(torch, "from_numpy", None)
    monkeypatch.setattr(DefaultRLModule.forward_exploration, "__code__", (lambda *_, **__: 1 / 0).__code__)
    runner.sample(num_timesteps=20)


def test_weights_that_are_set_reach_it():
    runner, other = make_runner(), make_runner(seed=2)
    recorded(runner)
    runner.set_state(other.get_state())
    other.sample(num_timesteps=2)
    runner.sample(num_timesteps=2)
    obs = torch.ones(1, 4)
    assert torch.equal(runner.module["default_policy"].pi.weight, other.module["default_policy"].pi.weight)
    with torch.inference_mode():
        logits = other.module["default_policy"].forward_inference({"obs": obs})["action_dist_inputs"]
    native_of_runner = runner._sampling.rollout.policies.by_index[0].inference._native
    np.testing.assert_allclose(native_of_runner.forward([obs.numpy()])[0], logits, rtol=1e-5, atol=1e-6)


class ChangeInTheMiddle:
    """Replaces all weights by zeros, in new tensors, once an env has made three steps."""

    def on_episode_step(self, *, episode, rl_module, **kwargs):
        if episode.env_t == 3:
            for parameter in rl_module.parameters():
                parameter.data = torch.zeros_like(parameter)


def test_a_module_that_a_callback_changes_acts_changed_at_once():
    runner = make_runner(num_envs_per_env_runner=1, callbacks_class=ChangeInTheMiddle)
    (chunk,) = runner.sample(num_timesteps=6)
    logits = chunk.agent_episodes["agent_0"].get_extra_model_outputs("action_dist_inputs")
    assert logits[:3].any(1).all() and not logits[3:].any()


class MovesWeights(Scripted):
    """Moves the weights of the module that it plays with, or replaces parts of it, in each step."""

    module = None
    change = None

    def step(self, actions):
        if self.module is not None:
            type(self).change(self.module)
        return super().step(actions)


def zero_and_hook(module):
    """From now on it is left to torch."""
    module.pi = nn.Linear(8, 3)
    nn.init.zeros_(module.pi.weight)
    module.pi.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    "change", [share_memory, replace_parameter, replace_data, assign_state, replace_layer, zero_and_hook],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_an_env_that_moves_the_weights_in_each_step_is_sampled_as_with_torch(monkeypatch, change):
    monkeypatch.setattr(MovesWeights, "change", change)
    columns = []
    for native in (True, False):
        monkeypatch.setattr(MovesWeights, "module", None)
        runner = make_runner(env=lambda config: MovesWeights(counting(3, 7), see=sine), native_inference=native)
        torch.manual_seed(3)
        monkeypatch.setattr(MovesWeights, "module", runner.module["default_policy"])
        columns.append(recorded(runner))
    assert_same(*columns)


def test_added_modules_are_run_by_it():
    runner = make_runner(policy_mapping_fn=lambda agent, episode: "default_policy")
    runner.add_module("other", new_agent_to_module_mapping_fn=lambda agent, episode: "other")
    plain = torch.nn.Linear(4, 3)
    runner.add_module("mine", fastmarl.RLModuleSpec(lambda **_: plain, *runner.get_spaces()["other"]))
    runner.sample(num_timesteps=40, force_reset=True)
    assert runner.inference_backends == {
        "default_policy": "native",
        "other": "native",
        "mine": "torch: Linear is not a DefaultRLModule",
    }
    assert runner.get_metrics()["num_module_steps_sampled"]["other"] > 0


def test_agents_that_come_and_go_get_answers_of_their_own():
    stays = {i: [(i, 10 + i)] for i in range(8)}
    options = {"env": lambda config: DyingAgentsEnv(stays, episode_length=20), "num_envs_per_env_runner": 3}
    assert_same(recorded(make_runner(**options)), recorded(make_runner(**options, native_inference=False)))


def test_nan_in_weights_is_an_error():
    runner = make_runner()
    torch.nn.init.constant_(runner.module["default_policy"].pi.weight, torch.nan)
    with pytest.raises(fastmarl.errors.ModuleOutputError, match="NaN"):
        runner.sample(num_timesteps=4)


class TooFewLogits(DefaultRLModule):
    def setup(self):
        super().setup()
        self.pi = nn.Linear(8, 4)


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("action_space", [MULTI, gym.spaces.Box(-1, 1, (2, 3), np.float32)])
def test_a_wrong_number_of_logits_is_an_error(action_space, explore):
    spec = fastmarl.RLModuleSpec(module_class=TooFewLogits)
    runner = make_runner(env=sines(action_space=action_space), rl_module_spec=spec)
    assert runner.inference_backends == {"default_policy": "native"}
    with pytest.raises(fastmarl.errors.ModuleOutputError, match=r"expected (5|12) 'action_dist_inputs' per row.* got"):
        runner.sample(num_timesteps=4, explore=explore)


def test_the_limit_is_measured_with_torch():
    runner = make_runner()
    network = BareNetwork(runner)
    batches = [batch["obs"] for *_, batch in network._steps]
    assert all(isinstance(obs, torch.Tensor) and obs is batches[0] for obs in batches)
    assert len(batches[0]) == 6 and network._rows == 6 * len(batches)
    assert runner.inference_backends == {"default_policy": "native"}
