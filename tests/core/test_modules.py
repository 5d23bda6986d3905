import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch

from fastmarl.core.spaces.columns import Columns
from fastmarl.distributions import Categorical, Deterministic, DiagGaussian
from fastmarl.errors import ConfigError
from fastmarl.modules import DefaultRLModule, MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec, as_rl_module

spaces = gym.spaces
SMALL = {"fcnet_hiddens": [16, 8]}
VECTOR = spaces.Box(-1, 1, (4,))
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,)),
    "nested": spaces.Dict(a=spaces.Discrete(3), b=spaces.MultiDiscrete([2, 3])),
}


def vectors(n: int) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


def default_module(action_space=ACTIONS["discrete"], **model_config) -> DefaultRLModule:
    return DefaultRLModule(VECTOR, action_space, model_config={**SMALL, **model_config})


class Linear(RLModule):
    """A module of a user's own, written as for RLlib."""

    def setup(self):
        self.net = torch.nn.Linear(self.observation_space.shape[0], self.model_config.get("n", 3))
        self.calls = []

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}


class Plain(torch.nn.Module):
    """A module that knows nothing of this package."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))

    def forward(self, batch):
        return {"action_dist_inputs": self.net(batch["obs"])}


def test_phases_default_to_forward_and_can_be_overridden():
    class Phases(Linear):
        def _forward_exploration(self, batch, t=None, **kwargs):
            return {"t": t, **self._forward(batch)}

    batch = {Columns.OBS: vectors(2)}
    module = Phases(VECTOR, ACTIONS["discrete"])
    assert module.forward_exploration(batch, t=7)["t"] == 7
    for forward in (module, module.forward_inference, module.forward_train):
        assert set(forward(batch)) == {Columns.ACTION_DIST_INPUTS}
    with pytest.raises(NotImplementedError, match="RLModule must implement _forward"):
        RLModule().forward_inference(batch)


def test_the_distribution_comes_from_the_space_or_the_module():
    assert Linear(VECTOR, ACTIONS["discrete"]).get_exploration_action_dist_cls() is Categorical

    class Ddpg(Linear):
        def setup(self):
            super().setup()
            self.action_dist_cls = DiagGaussian

        def get_inference_action_dist_cls(self):
            return Deterministic

    module = Ddpg(VECTOR, ACTIONS["box"])
    assert module.get_exploration_action_dist_cls() is module.get_train_action_dist_cls() is DiagGaussian
    assert module.get_inference_action_dist_cls() is Deterministic
    with pytest.raises(ConfigError, match="Linear needs an action_space"):
        Linear(VECTOR).get_train_action_dist_cls()


def test_specs_build():
    spec = RLModuleSpec(Linear, VECTOR, ACTIONS["discrete"], inference_only=True, model_config={"n": 3})
    module = spec.build()
    assert isinstance(module, Linear)
    assert (module.observation_space, module.action_space) == (VECTOR, ACTIONS["discrete"])
    assert module.inference_only
    assert module.net.out_features == 3
    built = MultiRLModuleSpec({"a": spec, "b": RLModuleSpec(None, VECTOR, ACTIONS["box"], model_config=SMALL)}).build()
    assert list(built) == ["a", "b"]
    assert isinstance(built["b"], DefaultRLModule)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_spec_may_make_a_plain_module():
    module = RLModuleSpec(lambda **kwargs: Plain(), VECTOR, ACTIONS["discrete"]).build()
    assert isinstance(module, RLModule)
    assert module.action_space == ACTIONS["discrete"]
    with pytest.raises(ConfigError, match=r"expected a torch.nn.Module, got None"):
        RLModuleSpec(lambda **kwargs: None).build()


def test_a_plain_module_keeps_its_weights_names_and_mode():
    plain = Plain()
    module = as_rl_module(plain, VECTOR, ACTIONS["discrete"])
    assert {id(p) for p in module.parameters()} == {id(p) for p in plain.parameters()}
    assert set(module.get_state()) == set(plain.state_dict())
    assert module.get_exploration_action_dist_cls() is Categorical
    assert not module.is_stateful()
    module.eval()
    assert not plain.net[1].training
    batch = {Columns.OBS: vectors(3)}
    for forward in (module, module.forward_exploration, module.forward_inference, module.forward_train):
        assert torch.equal(forward(batch)[Columns.ACTION_DIST_INPUTS], plain(batch)["action_dist_inputs"])


def test_a_plain_module_is_reached_through_the_one_around_it():
    class Warm(Plain):
        def __init__(self):
            super().__init__()
            self.temperature = 1.0

        def forward(self, batch, scale=1.0):
            return {"action_dist_inputs": scale * self.temperature * self.net(batch["obs"])}

        def __deepcopy__(self, memo):
            raise AssertionError("not of the module around it")

    plain = Warm().eval()
    module = as_rl_module(plain)
    assert module.net is plain.net
    module.temperature = 2.0
    assert plain.temperature == 2.0
    batch = {Columns.OBS: vectors(3)}
    logits = plain.net(batch[Columns.OBS])
    assert torch.equal(module(batch, scale=0.5)["action_dist_inputs"], logits)
    module.note = "of the module around it"
    assert not hasattr(plain, "note")
    with pytest.raises(AttributeError, match="'Warm' object has no attribute 'no_such_layer'"):
        _ = module.no_such_layer
    with pytest.raises(AttributeError, match="__deepcopy__"):
        _ = module.__deepcopy__


def test_spaces_that_a_module_lacks_are_filled_in():
    class Free(Linear):
        def setup(self):
            pass

    module = Free(action_space=ACTIONS["box"])
    assert as_rl_module(module, VECTOR, ACTIONS["discrete"]) is module
    assert (module.observation_space, module.action_space) == (VECTOR, ACTIONS["box"])


@pytest.mark.parametrize("make", [Plain, default_module, lambda: Linear(VECTOR)], ids=["plain", "default", "own"])
def test_state_goes_round(make):
    modules = [as_rl_module(make()) for _ in range(2)]
    with torch.no_grad():
        for parameter in modules[0].parameters():
            parameter.normal_()
    state = modules[0].get_state()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    for value in state.values():
        value.flags.writeable = False  # as from a checkpoint or shared memory
    modules[1].set_state(pickle.loads(pickle.dumps(state)))
    modules[1].set_state(state)
    again = modules[1].get_state()
    assert all(np.array_equal(state[name], again[name]) for name in state)
    before = {name: value.copy() for name, value in state.items()}
    with torch.no_grad():
        for parameter in (*modules[0].parameters(), *modules[1].parameters()):
            parameter += 1
    assert all(np.array_equal(state[name], before[name]) for name in state)  # a copy, not a view


def test_state_of_another_net_is_refused():
    module = default_module()
    with pytest.raises(
        ConfigError, match=r"the state does not match this DefaultRLModule: trunk.2.weight has shape \[9, 16\], not"
    ):
        module.set_state(default_module(fcnet_hiddens=[16, 9]).get_state())
    before, state = module.get_state(), default_module().get_state()
    state["trunk.0.weight"] += 1
    state["head"] = state.pop("pi.bias")
    with pytest.raises(ConfigError, match=r"pi.bias is missing; head is unknown"):
        module.set_state(state)
    assert np.array_equal(module.get_state()["trunk.0.weight"], before["trunk.0.weight"])


def test_bfloat16_weights_travel():
    module = default_module().to(torch.bfloat16)
    state = module.get_state()
    assert {value.dtype for value in state.values()} == {np.dtype(np.float32)}
    other = default_module().to(torch.bfloat16)
    other.set_state(state)
    assert other.trunk[0].weight.equal(module.trunk[0].weight)


def test_multi_module_is_a_mapping_and_a_torch_module():
    own, plain = Linear(VECTOR, ACTIONS["discrete"]), Plain().eval()
    multi = MultiRLModule({"own": own, "team.1 training": plain})
    assert list(multi) == list(multi.keys()) == ["own", "team.1 training"]
    assert len(multi) == 2
    assert multi["own"] is own
    assert dict(multi.items())["own"] is own
    assert all(isinstance(module, RLModule) for module in multi.values())
    assert multi.get("nobody") is None
    assert len(list(multi.parameters())) == len(list(own.parameters())) + len(list(plain.parameters()))
    batch = {Columns.OBS: vectors(2)}
    for forward in (multi, multi.forward_exploration, multi.forward_inference, multi.forward_train):
        outputs = forward({"own": batch, "team.1 training": batch})
        assert torch.equal(outputs["team.1 training"]["action_dist_inputs"], plain(batch)["action_dist_inputs"])
        assert set(forward({"own": batch})) == {"own"}
    assert multi.train().training
    assert plain.net[1].training


def test_modules_come_and_go():
    multi = MultiRLModule()
    assert len(multi) == 0
    multi.add_module("a", Linear(VECTOR))
    with pytest.raises(ConfigError, match="module 'a' already exists"):
        multi.add_module("a", Plain())
    replacement = Linear(VECTOR)
    multi.add_module("a", replacement, override=True)
    assert multi.remove_module("a") is replacement
    assert "a" not in multi
    assert not list(multi.parameters())
    with pytest.raises(KeyError, match=r"no module 'a'; available: \[\]"):
        multi["a"]
    with pytest.raises(ConfigError, match="a module id must be a string, got 3"):
        multi.add_module(3, Linear(VECTOR))
    with pytest.raises(ConfigError, match=r"torch.nn.Module"):
        multi.add_module("a", None)


def test_state_of_some_modules():
    multi, other = (MultiRLModule({name: Linear(VECTOR) for name in "ab"}) for _ in range(2))
    kept = other["a"].get_state()
    assert set(multi.get_state()) == {"a", "b"}
    state = multi.get_state(["b"])
    assert set(state) == {"b"}
    other.set_state(state)
    assert np.array_equal(other["b"].get_state()["net.weight"], state["b"]["net.weight"])
    assert np.array_equal(other["a"].get_state()["net.weight"], kept["net.weight"])
    with pytest.raises(ConfigError, match=r"contains unknown modules \['c'\]; expected a subset of \['a', 'b'\]"):
        other.set_state({"c": state["b"]})
    with pytest.raises(ConfigError, match="module 'a': the state does not match"):
        other.set_state({"a": {}})


def test_memory_of_many_modules():
    multi = MultiRLModule({"plain": Linear(VECTOR), "lstm": default_module(use_lstm=True)})
    assert multi.is_stateful()
    assert set(multi.get_initial_state()) == {"lstm"}
    assert not MultiRLModule({"plain": Linear(VECTOR)}).is_stateful()


def test_modules_can_be_copied_and_pickled():
    multi = MultiRLModule({"a": default_module(action_space=ACTIONS["nested"]), "b": as_rl_module(Plain().eval())})
    batch = {"a": {Columns.OBS: vectors(2)}, "b": {Columns.OBS: vectors(2)}}
    expected = multi(batch)
    for twin in (copy.deepcopy(multi), pickle.loads(pickle.dumps(multi))):
        outputs = twin(batch)
        for name in "ab":
            assert torch.equal(outputs[name]["action_dist_inputs"], expected[name]["action_dist_inputs"])
        assert twin["a"].get_train_action_dist_cls() is multi["a"].get_train_action_dist_cls()
