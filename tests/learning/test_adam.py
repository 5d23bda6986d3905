"""Adam's step in one pass against torch's."""

import platform
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fastmarl.learning.adam import FusedAdam, can_fuse


def test_adam_in_one_pass():
    shapes = [(), (1,), (0,), (7,), (33, 5), (256, 40)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    got, want = (torch.optim.Adam(each, lr=0.02, betas=(0.8, 0.95), eps=1e-4) for each in (ours, theirs))
    generator, fused = torch.Generator().manual_seed(0), None
    for k in range(8):
        got.param_groups[0]["lr"] = want.param_groups[0]["lr"] = 0.02 / (k + 1)
        for one, other in zip(ours, theirs, strict=True):
            gradient = torch.randn(one.shape, generator=generator) * 10.0 ** (k - 4)
            other.grad = gradient
            one.grad = gradient.clone() if one.grad is None else one.grad.copy_(gradient)
        want.step()
        if fused is None:
            assert not can_fuse(got)  # no step was made, there are no moments
            got.step()
            fused = FusedAdam(got)
        else:
            assert can_fuse(got)
            version = ours[-1]._version
            fused.step()
            assert ours[-1]._version > version
    for one, other in zip(ours, theirs, strict=True):
        assert got.state[one]["step"] == want.state[other]["step"] == 8
        for mine, yours in ((one, other), *((got.state[one][name], want.state[other][name])
                                            for name in ("exp_avg", "exp_avg_sq"))):  # fmt: skip
            largest = float(yours.detach().abs().max()) if len(yours.reshape(-1)) else 0  # terms of a mean may cancel
            np.testing.assert_allclose(mine.detach(), yours.detach(), rtol=2e-6, atol=1e-7 * largest)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors compute with subnormal numbers")
def test_adam_counts_subnormal_moments_as_zero():
    parameter = nn.Parameter(torch.ones(100))
    parameter.grad = torch.full((100,), 1e-3)
    optimizer = torch.optim.Adam([parameter])
    optimizer.step()
    state = optimizer.state[parameter]
    for moment in (state["exp_avg"], state["exp_avg_sq"]):
        moment[:50] = 1e-40
    parameter.grad[:50] = 0
    FusedAdam(optimizer).step()
    assert not state["exp_avg"][:50].any()
    assert not state["exp_avg_sq"][:50].any()
    assert state["exp_avg"][50:].all()
    assert (torch.full((100,), 1e-40) * 0.5).all()  # only there


@pytest.mark.parametrize("options", [{"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_other_kinds_of_adam_are_left_to_torch(options):
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(3))], **options)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    assert not can_fuse(optimizer)


def test_schedulers_see_its_steps():
    parameter = nn.Parameter(torch.ones(3))
    first = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(3)
    first.step()
    optimizer = torch.optim.Adam([parameter], lr=0.5)
    optimizer.load_state_dict(first.state_dict())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
    assert can_fuse(optimizer)
    FusedAdam(optimizer).step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
    optimizer.step = lambda: None
    assert not can_fuse(optimizer)
