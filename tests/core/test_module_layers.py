import pytest
import torch
from torch import nn

from fastmarl.core.modules.layers import Chain

OBS = torch.randn(3, 5)


def make_chain():
    return Chain(nn.Linear(5, 4), nn.Tanh(), Chain(nn.Linear(4, 2, bias=False)))


def test_a_chain_is_a_sequential():
    chain = make_chain()
    sequential = nn.Sequential(*chain)
    assert chain.state_dict().keys() == sequential.state_dict().keys()
    assert torch.equal(chain(OBS), sequential(OBS))


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_forward_hooks_of_its_layers_are_called(register):
    seen = []
    chain = make_chain()
    for layer in chain.modules():
        getattr(layer, register)(lambda layer, *_: seen.append(layer))
    chain(OBS)
    assert set(seen) == set(chain.modules())


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_its_layers_are_called(register):
    seen = []
    chain = make_chain()
    getattr(chain[0], register)(lambda layer, *_: seen.append(layer))
    chain(OBS.clone().requires_grad_()).sum().backward()
    assert seen == [chain[0]]


def test_a_parametrized_layer_is_respected():
    chain = make_chain()

    class Zero(nn.Module):
        def forward(self, weight):
            return 0 * weight

    nn.utils.parametrize.register_parametrization(chain[2][0], "weight", Zero())
    assert not chain(OBS).any()


def test_a_compiled_layer_runs_compiled(monkeypatch):
    chain = make_chain()
    monkeypatch.setattr(chain[1], "_compiled_call_impl", lambda inputs: 0 * inputs)
    assert not chain(OBS).any()
