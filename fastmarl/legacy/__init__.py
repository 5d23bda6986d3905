"""The API of the old RLlib stack without Ray: `RolloutWorker`, `EnvRunnerV2`, policies, batches, files."""

from fastmarl.legacy.batches.sample_batch import DEFAULT_POLICY_ID as DEFAULT_POLICY_ID
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch as MultiAgentBatch
from fastmarl.legacy.batches.sample_batch import SampleBatch as SampleBatch
from fastmarl.legacy.batches.sample_batch import concat_samples as concat_samples
from fastmarl.legacy.config import RolloutWorkerConfig as RolloutWorkerConfig
from fastmarl.legacy.files.dataset_reader import DatasetReader as DatasetReader
from fastmarl.legacy.files.inputs import MixedInput as MixedInput
from fastmarl.legacy.files.inputs import ShuffledInput as ShuffledInput
from fastmarl.legacy.files.inputs import register_input as register_input
from fastmarl.legacy.files.interfaces import InputReader as InputReader
from fastmarl.legacy.files.interfaces import IOContext as IOContext
from fastmarl.legacy.files.interfaces import OutputWriter as OutputWriter
from fastmarl.legacy.files.json_reader import JsonReader as JsonReader
from fastmarl.legacy.files.json_writer import JsonWriter as JsonWriter
from fastmarl.legacy.files.parquet import json_to_parquet as json_to_parquet
from fastmarl.legacy.filters import ConcurrentMeanStdFilter as ConcurrentMeanStdFilter
from fastmarl.legacy.filters import MeanStdFilter as MeanStdFilter
from fastmarl.legacy.policies.policy import Policy as Policy
from fastmarl.legacy.policies.policy_spec import PolicySpec as PolicySpec
from fastmarl.legacy.policies.ppo_torch_policy import PPOTorchPolicy as PPOTorchPolicy
from fastmarl.legacy.policies.torch_policy import TorchPolicy as TorchPolicy
from fastmarl.legacy.rollout_worker import RolloutWorker as RolloutWorker
from fastmarl.legacy.rollout_worker import get_global_worker as get_global_worker
from fastmarl.legacy.sampling.env_runner_v2 import EnvRunnerV2 as EnvRunnerV2
from fastmarl.legacy.sampling.episode_view import EpisodeV2 as EpisodeV2
from fastmarl.legacy.sampling.episodes_under_way import RolloutMetrics as RolloutMetrics
