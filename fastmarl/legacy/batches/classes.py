"""The classes of batches: RLlib's own where it is installed, so that other code of RLlib's takes them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastmarl.legacy.batches.own_batches import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch, concat_samples
else:
    try:
        from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch, concat_samples
    except ModuleNotFoundError:
        from fastmarl.legacy.batches.own_batches import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch, concat_samples

__all__ = ["DEFAULT_POLICY_ID", "MultiAgentBatch", "SampleBatch", "concat_samples"]
