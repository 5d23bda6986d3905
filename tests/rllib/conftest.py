import inspect
import sys
from types import SimpleNamespace

import pytest
import ray
from ray.rllib.connectors import connector_v2


@pytest.fixture(scope="session")
def local_ray():
    """Ray in processes of its own, for all tests that need it: they run in one process of the suite."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session", autouse=True)
def connectors_look_at_one_frame():
    """Each of RLlib's connectors looks up its caller by `inspect.stack()`, which reads the source of every frame. Under
    pytest, whose stack is deep, that was two thirds of the time of these tests."""

    def stack():
        return [SimpleNamespace(frame=sys._getframe(1)), SimpleNamespace(frame=sys._getframe(2))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector_v2, "inspect", SimpleNamespace(stack=stack, getargvalues=inspect.getargvalues))
        yield
