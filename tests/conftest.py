import gc
import importlib.util
import os
import random
import signal
import zlib

import numpy as np
import pytest
import torch
from hypothesis import settings

from fastmarl.core.native import _build

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
# Ray gives its workers 15: actors would wait for the other processes of the suite, for minutes.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray spells it so
torch.set_num_threads(1)
pytest.register_assert_rewrite("support", "rllib")  # so that asserts in what tests import show their values, too

if (os.environ.get("FASTMARL_SANITIZE") == "1") != _build.SANITIZED:
    raise pytest.UsageError(f"FASTMARL_SANITIZE=1 and a sanitized build go together; got {_build.__file__}")

OF_BOTH = {"deadline": None, "print_blob": True, "max_examples": int(os.environ.get("FASTMARL_FUZZ_CASES", 40))}
settings.register_profile("local", **OF_BOTH)
settings.register_profile("ci", **OF_BOTH, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "thinned(n): `make test` runs one in n combinations of parameters; each value is in some of them"
    )


@pytest.hookimpl(tryfirst=True)  # before marks choose tests
def pytest_collection_modifyitems(items):
    for item in items:
        if (mark := item.get_closest_marker("thinned")) and place_of(item) % mark.args[0]:
            item.add_marker(pytest.mark.exhaustive)
    for item in items:
        needed = {package for marker in item.iter_markers("needs") for package in marker.args}
        missing = sorted(package for package in needed if importlib.util.find_spec(package) is None)
        if missing and not os.environ.get("CI"):
            item.add_marker(pytest.mark.skip(reason=f"not run: {', '.join(missing)} is not installed"))
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="not run: torch finds no CUDA device here")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


def place_of(item):
    """Return the sum of the places that a test's parameters have in their lists."""
    place = 0
    for mark in item.iter_markers("parametrize"):
        names, choices = mark.args
        own = [item.callspec.params[name.strip()] for name in (names.split(",") if type(names) is str else names)]
        for i, choice in enumerate(choices):
            values = choice.values if isinstance(choice, type(pytest.param())) else choice
            values = values if len(own) > 1 or values is not choice else [choice]
            if all(one is other or (type(one) is int and one == other) for one, other in zip(own, values, strict=True)):
                place += i
                break
    return place


def pytest_collection_finish():
    """Freeze all existing objects: the garbage collector, which many tests call, then skips them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray Tune leaves one that raises nothing


@pytest.fixture(autouse=True)
def random_seed(request):
    """Seed torch and `rng`. A failing test reports the seed; FASTMARL_SEED sets it. In CI each test has its own."""
    name = request.node.nodeid.encode()
    of_test = zlib.crc32(name) if os.environ.get("CI") else random.SystemRandom().getrandbits(32)
    seed = int(os.environ.get("FASTMARL_SEED", of_test))
    request.node.add_report_section("setup", "seed", f"FASTMARL_SEED={seed}")
    torch.manual_seed(seed)
    return seed


@pytest.fixture
def rng(random_seed):
    return np.random.default_rng(random_seed)


@pytest.fixture(autouse=True)
def torch_state_is_kept():
    """Fail the test that leaves torch's state of the thread changed, rather than a later one."""
    before = _torch_state()
    yield
    after = _torch_state()
    torch._C._set_torch_function_state(before[0])
    assert after == before


def _torch_state():
    return (
        torch._C._get_torch_function_state(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
    )
