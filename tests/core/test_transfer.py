"""Batches to tensors and outputs back: the CPU's way, and a GPU's way on the CPU and (if there is one) a GPU."""

import numpy as np
import pytest
import torch

from fastmarl.core.nets.transfer import HostCopy, StagedCopy, make_transfer

TRANSFERS = {
    "host": HostCopy,
    "staged": lambda: StagedCopy(torch.device("cpu")),
    "cuda": lambda: StagedCopy(torch.device("cuda")),
}


@pytest.fixture(params=["host", "staged", pytest.param("cuda", marks=pytest.mark.gpu)])
def transfer(request):
    return TRANSFERS[request.param]()


@pytest.mark.parametrize("n", [0, 1, 37])
def test_arrays_arrive_as_they_are_but_for_float64(transfer, rng, n):
    arrays = [
        rng.normal(size=(n, 3)).astype(np.float32),
        rng.integers(0, 255, (n, 5, 5, 1)).astype(np.uint8),
        rng.integers(-9, 9, n),
        rng.normal(size=(n, 2)),
        rng.random((n, 7)) < 0.5,
    ]
    tensors = transfer.to_device(arrays)
    assert {tensor.device.type for tensor in tensors} == {transfer.device.type}
    for array, tensor in zip(arrays, tensors, strict=True):
        expected = array.astype(np.float32) if array.dtype == np.float64 else array
        assert tensor.cpu().numpy().dtype == expected.dtype
        np.testing.assert_array_equal(tensor.cpu().numpy(), expected)


@pytest.mark.parametrize("n", [0, 1, 37])
def test_outputs_come_back_under_their_keys(transfer, n):
    tensors = {
        "actions": torch.arange(n),
        ("state_out", "h"): torch.randn(n, 3),
        "flags": torch.arange(n) % 2 == 0,
        "strided": torch.randn(n, 6)[:, ::2],
    }
    arrays = transfer.to_host({key: tensor.to(transfer.device) for key, tensor in tensors.items()})
    assert list(arrays) == list(tensors)
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[key], tensor.numpy())
        assert arrays[key].dtype == tensor.numpy().dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_tensors_are_copies(transfer, dtype):
    array = np.zeros((4, 2), dtype)
    for given in (array, array[::-1], array.T, array[:, 1:]):
        (tensor,) = transfer.to_device([given])
        tensor.add_(1)
        assert not array.any()


def test_modules_on_the_cpu_need_no_buffers():
    assert isinstance(make_transfer(torch.device("cpu")), HostCopy)
