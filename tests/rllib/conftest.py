import pytest
import ray


@pytest.fixture(scope="module")
def local_ray():
    """Ray in processes of its own, for the tests of one file."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
