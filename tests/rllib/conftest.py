import pytest
import ray


@pytest.fixture(scope="session")
def local_ray():
    """Ray in processes of its own, for all tests that need it: they run in one process of the suite."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
