"""The paths by which users import; they stay, and classes carry them."""

import inspect
import pickle
import py_compile
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fastmarl

PUBLIC = {
    "fastmarl": """
        ArrayEnv Callbacks Columns EnvRunnerConfig MetricsLogger MultiAgentEnv MultiAgentEnvRunner
        MultiAgentEpisode MultiRLModule Policy RLModule RLModuleSpec Recorded RunningMeanStd SingleAgentEpisode
        VideoCallback __version__ evaluate register_env replay tournament
    """,
    "fastmarl.batches": """
        TeamRewards add_aligned_gae add_aligned_n_step_returns add_gae add_n_step_returns add_returns add_vtrace
        aligned columns map_columns rewards_by_arrival sequences with_final_obs
    """,
    "fastmarl.bench": "RelativeSpeed measure_relative_speed",
    "fastmarl.checkpoint": "load_state save_state",
    "fastmarl.connectors": """
        AgentIndicator EnvToModuleConnector EnvToModule FlattenObservations FrameStacking GetActions MeanStdFilter
        NormalizeAndClipActions ModuleToEnvConnector PrevActionsPrevRewards Rows stack_frames
    """,
    "fastmarl.distributed": "BackgroundSampler EnvRunnerGroup SamplePart",
    "fastmarl.distributions": """
        Bernoulli Categorical Deterministic DiagGaussian Distribution MultiCategorical MultiDistribution
        choice_slices get_action_dist_cls num_dist_inputs
    """,
    "fastmarl.envs": """
        AECPettingZooEnv ArrayEnv CartPole ConnectFour DictGymnasiumEnv EnvContext GridWorld GroupArrays
        JointGymnasiumEnv LevelBasedForaging MultiAgentEnv OpenSpielEnv ParallelPettingZooEnv PufferLibEnv
        RemoteEnv SimpleSpread SimpleTag StepArrays TupleGymnasiumEnv VectorGymnasiumEnv VmasEnv Warehouse
        WrappedMultiAgentEnv register_env time_limited
    """,
    "fastmarl.envs.streams": "below new_streams random_bits seed_streams uniform",
    "fastmarl.episodes": "MultiAgentEpisode SingleAgentEpisode from_rllib to_rllib",
    "fastmarl.errors": """
        ActionMaskError BatchError CheckpointError ConfigError ConnectorError EnvCheckError
        EnvRunnerLostError EnvStateError EnvTimeoutError EnvWorkerError EpisodeError FastmarlError
        FinishedAgentError ModuleOutputError MultiAgentEnvError NotBuiltError ObservationError OfflineError
        PolicyBusyError RecordingError RemoteEnvError RemoteEnvRunnerError RemoteSamplerError ReplayError
        RewardError RunnerBusyError RunnerStoppedError RunningEpisodeError SamplerProcessError
        SamplerTimeoutError UnknownAgentError UnknownModuleError UserExitError
    """,
    "fastmarl.learning": """
        MetricsWriter PPOLearner TeamReplay ValueNorm flat_parameters keep_freed_memory bootstrap_values minibatches
        normalized ppo_loss to_tensors make_value_fn
    """,
    "fastmarl.interop.gymnasium": "AgentVectorEnv",
    "fastmarl.interop.sb3": "AgentVecEnv",
    "fastmarl.legacy": """
        DEFAULT_POLICY_ID DatasetReader EnvRunnerV2 EpisodeV2 IOContext InputReader JsonReader JsonWriter
        MeanStdFilter MixedInput MultiAgentBatch OutputWriter PPOTorchPolicy Policy PolicySpec RolloutMetrics
        RolloutWorker RolloutWorkerConfig SampleBatch ShuffledInput TorchPolicy concat_samples json_to_parquet
        register_input
    """,
    "fastmarl.modules": """
        DefaultModelConfig DefaultRLModule MultiRLModule MultiRLModuleSpec RLModule RLModuleSpec
        as_rl_module
    """,
    "fastmarl.offline": "ParquetReader ParquetWriter to_minari",
    "fastmarl.play": "Evaluation Policy Returns Tournament bradley_terry evaluate tournament",
    "fastmarl.replays": "RecordedEpisode Recording Replay ReplayStep VideoCallback replay",
    "fastmarl.rllib": "FirstReadyPPO MultiAgentEnvRunner PPOTorchLearner RolloutWorker",
    "fastmarl.testing": "ClockEnv CountingEnv DyingAgentsEnv ReusingEnv ScriptedEnv TurnBasedEnv check_env",
    "fastmarl.training": "Algorithm agents_of linear_schedule load_states runner_options states_of",
}
WITH_RAY = {"fastmarl.rllib"}
CONSTANTS = {"DEFAULT_POLICY_ID", "__version__"}
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NAMES = [(module, name) for module, names in PUBLIC.items() for name in names.split()]


def params(names: list[tuple[str, str]]) -> list:
    needs_ray = pytest.mark.needs("ray")
    return [pytest.param(*pair, marks=needs_ray if pair[0] in WITH_RAY else ()) for pair in names]


@pytest.mark.parametrize(("module", "name"), params(NAMES))
def test_a_public_name_is_there(module, name):
    assert getattr(import_module(module), name) is not None


@pytest.mark.needs("ray")
def test_public_modules_are_attributes_and_ray_pickles_public_classes_by_name():
    """Whatever was imported. By value, the other process would get another class of the same name."""
    paths = [path for path in PUBLIC if path.count(".") == 1]
    program = (
        f"import fastmarl\nprint({', '.join(paths)})"
        + """
import inspect, pkgutil, sys
from importlib import import_module
import ray.cloudpickle
import fastmarl.core

for found in pkgutil.walk_packages(fastmarl.core.__path__, "fastmarl.core."):
    import_module(found.name)
classes = {value for name, module in sys.modules.items() if name.startswith("fastmarl.core")
           for value in vars(module).values() if inspect.isclass(value)}
public = [each for each in classes if each.__module__.startswith("fastmarl.") and ".core." not in each.__module__]
assert len(public) > 50
for each in public:
    assert len(ray.cloudpickle.dumps(each)) < 200, each
"""
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(("module", "name"), params([pair for pair in NAMES if pair[0] not in WITH_RAY]))
def test_a_public_class_carries_a_public_path(module, name):
    thing = getattr(import_module(module), name)
    if inspect.isclass(thing) and not thing.__module__.startswith("ray."):
        assert name in PUBLIC[thing.__module__].split()
        assert pickle.loads(pickle.dumps(thing)) is thing


def test_the_reference_shows_every_public_name_once():
    shown = [
        path for page in REFERENCE.glob("*.md") for path in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    ]
    names_of = {}
    for module, name in NAMES:
        if module not in WITH_RAY and name not in CONSTANTS:
            names_of.setdefault(id(getattr(import_module(module), name)), []).append(f"{module}.{name}")
    for names in names_of.values():
        assert sum(map(shown.count, names)) == 1, names


def test_without_its_source_the_package_says_so(tmp_path):
    home = Path(fastmarl.__file__).parent
    for path in (*home.glob("*.py"), *home.glob("core/*.py"), *home.glob("core/objects/*.py")):
        py_compile.compile(path, tmp_path / "fastmarl" / path.relative_to(home).with_suffix(".pyc"))
    done = subprocess.run(
        [sys.executable, "-c", "import fastmarl"], cwd=tmp_path, env={}, capture_output=True, text=True
    )
    assert " needs its source file, but only bytecode is installed" in done.stderr
    assert "install fastmarl with its .py files" in done.stderr
