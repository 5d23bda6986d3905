"""Derivatives of layers in torch's operations, against autograd."""

import numpy as np
import pytest
import torch
from torch import nn

from fastmarl.rllib.learner.dense import BACKWARDS, DenseStack, is_dense, layers_of

NETS = {
    "one layer": [nn.Linear(3, 4)],
    "no bias": [nn.Linear(3, 40, bias=False), nn.Tanh(), nn.Linear(40, 2, bias=False)],
    "no activation": [nn.Linear(5, 4), nn.Linear(4, 6)],
    **{kind.__name__: [nn.Linear(4, 40), kind(), nn.Linear(40, 7), kind(), nn.Linear(7, 2)] for kind in BACKWARDS},
    "own alpha": [nn.Linear(3, 4), nn.ELU(alpha=0.4), nn.Linear(4, 2)],
    "tanh of GELU": [nn.Linear(3, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 2)],
}


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("name", NETS)
def test_layers(name, n):
    net, generator = nn.Sequential(*NETS[name]), torch.Generator().manual_seed(n)
    assert is_dense(net)
    net.zero_grad()
    gradients = {weight: torch.full_like(weight, torch.nan) for weight in net.parameters()}
    inputs = torch.randn(n, net[0].in_features, generator=generator).requires_grad_()
    want = net(inputs)
    derivatives = torch.randn(want.shape, generator=generator)
    want.backward(derivatives)
    with torch.no_grad():
        layers = layers_of(net, n, gradients)
        for is_first in (False, True):
            stack = DenseStack(layers, is_first)
            np.testing.assert_allclose(stack.forward(inputs), want.detach(), rtol=1e-5, atol=1e-6)
            by_inputs = stack.backward(derivatives.clone())
            if not is_first:
                np.testing.assert_allclose(by_inputs, inputs.grad, rtol=1e-4, atol=1e-6)
            for weight, gradient in gradients.items():
                np.testing.assert_allclose(gradient, weight.grad, rtol=1e-4, atol=1e-5)
                gradient.fill_(torch.nan)


@pytest.mark.parametrize(
    "layers",
    [[], [nn.Tanh()], [nn.Linear(2, 3), nn.Tanh(), nn.Tanh()], [nn.Linear(2, 3), nn.LayerNorm(3)],
     [nn.Linear(2, 3), nn.Mish()], [nn.Linear(2, 3), nn.Dropout(0.1)]],
    ids=str,
)  # fmt: skip
def test_other_layers_are_left_to_torch(layers):
    assert not is_dense(nn.Sequential(*layers))
