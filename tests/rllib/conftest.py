import gc
import os
from pathlib import Path

import pytest
import ray
from ray import cloudpickle
from ray.rllib.connectors import connector_v2
from ray.rllib.offline.json_reader import JsonReader
from ray.rllib.offline.json_writer import JsonWriter
from support.light_stack import LIGHT_INSPECT


@pytest.fixture(scope="session")
def local_ray():
    """Ray in processes of its own, for all tests that need it: they run in one process of the suite."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # for what actors import from the tests' own packages
        error = _start_ray() and _start_ray()  # on a busy machine its processes may not find each other in time
    if error:
        pytest.fail(f"Ray did not start twice: {error}", pytrace=False)
    yield
    ray.shutdown()


def _start_ray() -> str | None:
    """Start Ray; return a line that says what went wrong, if anything did."""
    try:
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    except Exception as error:
        ray.shutdown()
        return f"{type(error).__name__}: {error!s:.200}".splitlines()[0]


@pytest.fixture(scope="session", autouse=True)
def connectors_look_at_one_frame():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector_v2, "inspect", LIGHT_INSPECT)
        yield


@pytest.fixture
def rllib_closes_its_files(monkeypatch):
    """Close what RLlib's readers and writers leave open; the warnings would come in another test."""
    opened = []

    def keep_files_of(kind, method):
        open_file = getattr(kind, method)

        def kept(self, *args):
            opened.append(open_file(self, *args))
            return opened[-1]

        monkeypatch.setattr(kind, method, kept)

    keep_files_of(JsonReader, "_try_open_file")
    keep_files_of(JsonWriter, "_get_file")
    yield
    for file in opened:
        file.close()
    gc.collect()


@pytest.fixture(scope="module")
def sent_by_value(request):
    """Ray's processes can't import the test's module."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
