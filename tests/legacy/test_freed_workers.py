"""A worker whose name is bound to another one is freed at once."""

from support.freed import left_behind

from fastmarl.legacy import RolloutWorker, RolloutWorkerConfig


def test_a_worker_is_freed_by_reference_counts_alone():
    def use():
        worker = RolloutWorker(config=RolloutWorkerConfig(env="fastmarl.cart_pole", policies=["p0"], seed=0))
        worker.learn_on_batch(worker.sample())
        worker.get_metrics()

    assert not left_behind(use)
