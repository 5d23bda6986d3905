"""Batches, of RLlib's own classes."""

from ray.rllib.policy.sample_batch import DEFAULT_POLICY_ID as DEFAULT_POLICY_ID
from ray.rllib.policy.sample_batch import MultiAgentBatch as MultiAgentBatch
from ray.rllib.policy.sample_batch import SampleBatch as SampleBatch
from ray.rllib.policy.sample_batch import concat_samples as concat_samples
