"""Two processes whose workers average their gradients."""

import numpy as np
import pytest
import torch
import torch.multiprocessing
from support.legacy import config_with

from fastmarl.errors import ConfigError
from fastmarl.legacy import Policy, RolloutWorker

N_STEPS = 3


def learn(rank, url, results):
    """One of the workers."""
    torch.set_num_threads(1)
    with RolloutWorker(config=config_with(policy_mapping_fn=None, policies=None), worker_index=rank) as worker:
        worker.set_weights({"default_policy": initial_weights()})
        worker.setup_torch_data_parallel(url, rank, 2, "gloo")
        batches = []
        for _ in range(N_STEPS):
            batches.append(worker.sample())
            worker.learn_on_batch(batches[-1])
        results.put((rank, batches, worker.get_weights()["default_policy"]))
        results.join()
    assert not torch.distributed.is_initialized()


def initial_weights():
    with RolloutWorker(config=config_with(policy_mapping_fn=None, policies=None)) as worker:
        return worker.get_weights()["default_policy"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_workers_learn_as_one_with_the_mean_of_their_gradients():
    context = torch.multiprocessing.get_context("spawn")
    results = context.JoinableQueue()
    with RolloutWorker(config=config_with(policy_mapping_fn=None, policies=None)) as worker:
        url = f"tcp://127.0.0.1:{worker.find_free_port()}"
        processes = [context.Process(target=learn, args=(rank, url, results)) for rank in (0, 1)]
        for process in processes:
            process.start()
        try:
            (_, batches, weights), (_, others, same_weights) = sorted((results.get(timeout=120) for _ in processes),
                                                                      key=lambda result: result[0])  # fmt: skip
            for _ in processes:
                results.task_done()
        finally:
            for process in processes:
                process.join(60)
                process.kill()
        assert [process.exitcode for process in processes] == [0, 0]
        worker.set_weights({"default_policy": initial_weights()})
        for batch, other in zip(batches, others, strict=True):
            assert not np.array_equal(batch["default_policy"]["obs"], other["default_policy"]["obs"])
            gradients, more = (worker.compute_gradients(each, single_agent=True)[0] for each in (batch, other))
            worker.apply_gradients([(one + another) / 2 for one, another in zip(gradients, more, strict=True)])
        expected = worker.get_weights()["default_policy"]
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name], same_weights[name])
        np.testing.assert_allclose(weights[name], array, rtol=1e-5, atol=1e-7)


def test_only_policies_of_torch_can_be_parallel():
    class Own(Policy):
        def learn_on_batch(self, samples):
            return {}

    refused = pytest.raises(ConfigError, match="TorchPolicies")
    with RolloutWorker(config=config_with(), default_policy_class=Own) as worker, refused:
        worker.setup_torch_data_parallel("tcp://127.0.0.1:1", 0, 2, "gloo")
    assert not torch.distributed.is_initialized()
