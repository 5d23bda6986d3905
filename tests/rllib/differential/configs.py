"""RLlib configs, which are created for each run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tree
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.connectors.common.frame_stacking import FrameStacking
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import FlattenObservations, MeanStdFilter, PrevActionsPrevRewards
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from rllib.differential import batch_pieces, modules, pieces
from rllib.differential.callbacks import callbacks
from rllib.differential.mappings import mapping_fn
from rllib.differential.worlds import Rules, World

CONNECTORS: dict[str, Callable[[], Any]] = {
    "flatten": lambda: FlattenObservations(multi_agent=True),
    "flatten some": lambda: FlattenObservations(multi_agent=True, agent_ids=[0, 2]),
    "mean_std": lambda: MeanStdFilter(multi_agent=True),
    "frozen_mean_std": lambda: MeanStdFilter(multi_agent=True, update_stats=False),
    "std": lambda: MeanStdFilter(multi_agent=True, de_mean_to_zero=False),
    "mean": lambda: MeanStdFilter(multi_agent=True, de_std_to_one=False, clip_by_value=0.5),
    "previous": lambda: PrevActionsPrevRewards(multi_agent=True, n_prev_actions=2, n_prev_rewards=1),
    "frames": lambda: FrameStacking(num_frames=3, multi_agent=True),
    "own": pieces.Scaled,
    "own, longer": pieces.WithReward,
    "own, joint": pieces.Joint,
    "own, curious": pieces.Curious,
    "own, as a piece": pieces.Plain,
    **batch_pieces.TO_MODULE,
}
MODULES: dict[str, type] = {
    "any": modules.AnySpaces,
    "noting": modules.NotingAnySpaces,
    "extras": modules.Extras,
    "retyped": modules.Retyped,
    "odd_names": modules.OddNames,
    "own_actions": modules.OwnActions,
    "heuristic": modules.Heuristic,
    "memory": modules.Memory,
    "bonus": modules.ReadsBonus,
    "memory, bonus": modules.RemembersBonus,
}
SMALL = {"fcnet_hiddens": [8]}
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
CONV = {"conv_filters": [[4, 3, 2], [4, 3, 2]], "head_fcnet_hiddens": [8]}


class Shifted(ConnectorV2):
    """Adds a little to all observations that modules get."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        for columns in batch.values():
            columns["obs"] = tree.map_structure(lambda leaf: leaf + 0.25, columns["obs"])
        return batch


@dataclass(frozen=True, kw_only=True)
class Setup:
    """All that a config is made from. Either `rules` of a World or an env of RLlib's with its config."""

    rules: Rules | None = None
    env: Any = World
    env_config: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=lambda: {"p0": "default", "p1": "default"})
    model_config: dict[str, Any] = field(default_factory=lambda: SMALL)
    mapping: str = "group"
    """One of rllib.differential.mappings; those that ask the episode need the same spaces for all."""
    connectors: tuple[str, ...] = ()
    to_env: tuple[str, ...] = ()
    """Module-to-env pieces at the place where RLlib puts them."""
    callbacks: str = "none"
    num_envs: int = 1
    num_env_runners: int = 0
    fragment: int | str = 7
    batch: int = 4000
    batch_mode: str = "truncate_episodes"
    count_steps_by: str = "env_steps"
    explore: bool = True
    lookback: int = 1
    normalize: bool = True
    clip: bool = False
    seed: int | None = 3
    in_evaluation: bool = False
    checked: bool = False
    restarts: bool = False
    to_numpy: bool = True
    window: int = 100


def make_config(setup: Setup) -> PPOConfig:
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .environment(
            setup.env,
            env_config={"rules": setup.rules} if setup.rules else dict(setup.env_config),
            disable_env_checking=not setup.checked,
            normalize_actions=setup.normalize,
            clip_actions=setup.clip,
        )
        .multi_agent(policies=[*setup.modules], policy_mapping_fn=_mapping(setup))
        .debugging(seed=setup.seed)
        .reporting(metrics_num_episodes_for_smoothing=setup.window)
        .fault_tolerance(restart_failed_sub_environments=setup.restarts)
        .callbacks(**callbacks(setup.callbacks))
    )
    config.train_batch_size_per_learner = setup.batch
    config.count_steps_by = setup.count_steps_by
    config.in_evaluation = setup.in_evaluation
    _set_env_runners(config, setup)
    _set_modules(config, setup)
    return config


def _set_env_runners(config: PPOConfig, setup: Setup) -> None:
    options: dict[str, Any] = {}
    if setup.connectors:
        options["env_to_module_connector"] = lambda env, spaces, device: [CONNECTORS[c]() for c in setup.connectors]
    if setup.to_env:
        options["module_to_env_connector"] = lambda env, spaces: [batch_pieces.TO_ENV[c]() for c in setup.to_env]
    config.env_runners(
        num_env_runners=setup.num_env_runners,
        num_envs_per_env_runner=setup.num_envs,
        rollout_fragment_length=setup.fragment,
        batch_mode=setup.batch_mode,
        explore=setup.explore,
        episode_lookback_horizon=setup.lookback,
        episodes_to_numpy=setup.to_numpy,
        **options,
    )


def _set_modules(config: PPOConfig, setup: Setup) -> None:
    model_config = dict(setup.model_config)
    if set(setup.modules.values()) == {"default"}:
        config.rl_module(model_config=model_config)
        return
    specs = {
        name: RLModuleSpec(DefaultPPOTorchRLModule, model_config=model_config, catalog_class=PPOCatalog)
        if kind == "default"
        else RLModuleSpec(MODULES[kind])
        for name, kind in setup.modules.items()
    }
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


def _mapping(setup: Setup) -> Callable[..., str]:
    return mapping_fn([*setup.modules], setup.rules, setup.mapping)
