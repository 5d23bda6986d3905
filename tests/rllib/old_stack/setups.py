"""Makes the worker of a case from its setup, as an Algorithm does."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.policy.policy import PolicySpec
from rllib.differential import spaces
from rllib.differential.worlds import Rules
from rllib.old_stack.callbacks import CALLBACKS
from rllib.old_stack.envs import ENVS
from rllib.old_stack.mappings import mapping_fn
from rllib.old_stack.models import MODELS
from rllib.old_stack.policies import EXPLORATIONS, POLICIES
from rllib.old_stack.readers import READERS, WRITERS

_NETS: dict[str, Any] = {"fcnet_hiddens": [8], "fcnet_activation": "tanh"}
ALGORITHMS: dict[str, tuple[type[AlgorithmConfig], dict[str, Any]]] = {
    "ppo": (PPOConfig, {}),
    "appo": (APPOConfig, {}),
    "impala": (IMPALAConfig, {}),
    "dqn": (DQNConfig, {"hiddens": [8], "n_step": 2}),
    "sac": (SACConfig, {"q_model_config": _NETS, "policy_model_config": _NETS}),
}
"""Name -> its config, and what is small about it."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The settings of a worker; each field is RLlib's setting of a similar name, or a key of a table."""

    rules: Rules
    env: str = "world"
    algorithm: str = "ppo"
    policies: dict[str, str] = field(default_factory=lambda: {"p0": "default", "p1": "default"})
    """Name -> key of POLICIES; p0, p1 and p2 have the spaces of the rules' groups."""
    models: dict[str, str] = field(default_factory=dict)
    """Name of a policy -> key of MODELS, if it is not `model`."""
    model: str = "small"
    explorations: dict[str, str] = field(default_factory=dict)
    """Name of a policy -> key of EXPLORATIONS, if it is not the algorithm's own."""
    unexploring: tuple[str, ...] = ()
    """Policies with explore=False of their own."""
    mapping: str = "group"
    callbacks: str = "none"
    num_envs: int = 1
    worker_index: int = 1
    num_env_runners: int = 1
    fragment: int = 7
    batch_mode: str = "truncate_episodes"
    count_steps_by: str = "env_steps"
    explore: bool = True
    normalize: bool = True
    clip_actions: bool = False
    clip_rewards: bool | float | None = None
    observation_filter: str = "NoFilter"
    preprocessors: str = "on"
    """on, off (`_disable_preprocessor_api`) or none (`preprocessor_pref=None`)."""
    flat_actions: bool = True
    compress: bool = False
    output: str | None = None
    """Where to write what is sampled: files in the folder of this name, see `runs.py`."""
    postprocess_inputs: bool = False
    seed: int | None = 0
    in_evaluation: bool = False
    restarts: bool = False
    ema: float | None = None
    fake_sampler: bool = False
    capacity: int = 100
    """`policy_map_capacity`; beyond it, RLlib stashes policies in Ray's object store."""
    remote_envs: bool = False
    """Each environment is in an actor; needs Ray. All are waited for, so that their order is the same in each run."""
    reader: str = "sampler"
    """A key of READERS: what the worker gets its batches from."""
    has_env: bool = True
    """False: a local worker beside others, which samples nothing."""
    infers_spaces: bool = False
    """RLlib finds out which spaces policies have."""


def make_worker(setup: Setup, worker_class: type) -> Any:
    """A worker of this class, built from scratch."""
    config = make_config(setup)
    return worker_class(
        env_creator=ENVS[setup.env],
        validate_env=None,
        config=config,
        worker_index=setup.worker_index,
        num_workers=setup.num_env_runners,
        default_policy_class=default_policy_class(config),
        spaces=None,
    )


def make_config(setup: Setup) -> AlgorithmConfig:
    """A frozen config, with names and functions of its own."""
    kind, small = ALGORITHMS[setup.algorithm]
    config = kind().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.framework("torch").training(model=dict(MODELS[setup.model]), **small)
    config.environment(
        env_config={"rules": setup.rules},
        normalize_actions=setup.normalize,
        clip_actions=setup.clip_actions,
        clip_rewards=setup.clip_rewards,
        disable_env_checking=True,
    )
    config.callbacks(CALLBACKS[setup.callbacks]).debugging(seed=setup.seed, log_level="ERROR")
    config.fault_tolerance(restart_failed_sub_environments=setup.restarts)
    _set_sampling(config, setup)
    _set_policies(config, setup)
    config.freeze()
    return config


def _set_sampling(config: AlgorithmConfig, setup: Setup) -> None:
    preprocessor = {"preprocessor_pref": None} if setup.preprocessors == "none" else {}
    config.env_runners(
        num_env_runners=setup.num_env_runners,
        num_envs_per_env_runner=setup.num_envs,
        rollout_fragment_length=setup.fragment,
        batch_mode=setup.batch_mode,
        explore=setup.explore,
        observation_filter=setup.observation_filter,
        compress_observations=setup.compress,
        sampler_perf_stats_ema_coef=setup.ema,
        remote_worker_envs=setup.remote_envs,
        remote_env_batch_wait_ms=60_000 if setup.remote_envs else 0,
        **preprocessor,
    )
    config.experimental(
        _disable_preprocessor_api=setup.preprocessors == "off", _disable_action_flattening=not setup.flat_actions
    )
    config.create_local_env_runner = setup.has_env
    if setup.output:
        config.offline_data(output=WRITERS.get(setup.output, setup.output))
    config.offline_data(postprocess_inputs=setup.postprocess_inputs, input_=READERS[setup.reader])
    config.in_evaluation = setup.in_evaluation
    config.fake_sampler = setup.fake_sampler


def _set_policies(config: AlgorithmConfig, setup: Setup) -> None:
    names = [*setup.policies]
    if names == ["default_policy"]:
        return
    config.multi_agent(
        policies={name: policy_spec(setup, name, seed=100 * i) for i, name in enumerate(names)},
        policy_mapping_fn=mapping_fn(setup.mapping, names, setup.rules),
        count_steps_by=setup.count_steps_by,
        policy_map_capacity=setup.capacity,
    )


def policy_spec(setup: Setup, name: str, seed: int, kind: str | None = None) -> PolicySpec:
    """How the policy of this name is made. Its spaces are seeded: RLlib draws from them."""
    overrides: dict[str, Any] = {}
    if name in setup.models:
        overrides["model"] = {**MODELS[setup.models[name]]}
    if name in setup.explorations:
        overrides["exploration_config"] = {**EXPLORATIONS[setup.explorations[name]]}
    if name in setup.unexploring:
        overrides["explore"] = False
    policy_class = POLICIES[kind or setup.policies[name]]
    if setup.infers_spaces:
        return PolicySpec(policy_class, config=overrides)
    group = name if name in setup.rules.obs_kinds else "p0"
    obs_space = spaces.OBSERVATIONS[setup.rules.obs_kinds[group]]()
    action_space = spaces.ACTIONS[setup.rules.action_kinds[group]]()
    obs_space.seed(seed + 1)
    action_space.seed(seed + 2)
    return PolicySpec(policy_class, obs_space, action_space, overrides)


def default_policy_class(config: AlgorithmConfig) -> Any:
    """Return the policy class that an Algorithm of this config passes to its workers."""
    return config.algo_class.get_default_policy_class(config) if config.algo_class else None


def generators_of(space: Any) -> Any:
    """The states of a space's generators, as deep as it is nested."""
    if not isinstance(space, gymnasium.Space):
        return type(space).__name__  # RLlib keeps tensors in places of spaces, too
    parts = space.spaces if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)) else ()
    below = [generators_of(part) for part in (parts.values() if isinstance(parts, dict) else parts)]
    original = generators_of(getattr(space, "original_space", None))
    return [space._np_random and space._np_random.bit_generator.state, below, original]
