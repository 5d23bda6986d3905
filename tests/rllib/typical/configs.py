"""The 24 configs. What is typical of the project is in the docstring of the function that makes its config."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import FlattenObservations
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe
from rllib.differential import known_envs
from rllib.differential.modules import Heuristic
from rllib.differential.runs import Call, GetMetrics, Sample, SetState
from rllib.typical import callbacks, envs, mappings
from rllib.typical.adapters import AgentsInACycle, NewMapping, RockPaperScissors
from rllib.typical.modules import Masked

CALLS: tuple[Call, ...] = (
    Sample(num_timesteps=25),
    GetMetrics(),
    SetState(seq_no=1),
    Sample(num_timesteps=14),
    Sample(),
    GetMetrics(),
)
LONGER: tuple[Call, ...] = (
    Sample(num_timesteps=100),
    GetMetrics(),
    SetState(seq_no=1),
    Sample(num_timesteps=70),
    Sample(),
    GetMetrics(),
)
WHOLE: tuple[Call, ...] = (Sample(), GetMetrics(), SetState(seq_no=1), Sample(num_episodes=3), GetMetrics())
"""For callbacks that read rewards of agents which end early: in later chunks RLlib's getters raise (difference 57)."""
SMALL = {"fcnet_hiddens": [8]}
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
BY_NUMBER = (known_envs.CartPoles, known_envs.Pendulums)
"""Envs that are told how many agents there are; these are numbers."""
CONFIGS: dict[str, "TypicalConfig"] = {}


@dataclass(frozen=True, kw_only=True)
class TypicalConfig:
    """A config with where it comes from. It can be played like a Case of the differential tests.

    Attributes:
        kind: "plain", "callbacks", "flattened" or "mapping".
        slow_path_reason: why RLlib's own loop samples it; None if it is accelerated.
        mixes_columns: whether modules with different outputs act together.
        draws_policies: whether the mapping function says something else each time it is asked.
        drops_episodes: whether sample() is asked for whole episodes.
    """

    kind: str
    source: str
    make_config: Callable[[], PPOConfig]
    calls: tuple[Any, ...] = CALLS
    slow_path_reason: str | None = None
    mixes_columns: bool = False
    draws_policies: bool = False
    drops_episodes: bool = False
    worker_index: int | None = 1


def typical(kind: str, source: str, **options: Any) -> Callable[[Callable[[], PPOConfig]], Callable[[], PPOConfig]]:
    """Add the config that a function makes to CONFIGS, under the function's name."""

    def add(function: Callable[[], PPOConfig]) -> Callable[[], PPOConfig]:
        CONFIGS[function.__name__] = TypicalConfig(kind=kind, source=source, make_config=function, **options)
        return function

    return add


def base(
    env: Any, policies: Any, mapping: Callable[..., str], *, to_train: Any = None, **env_runners: Any
) -> PPOConfig:
    """A config with small networks and fixed seeds."""
    env_runners = {"num_envs_per_env_runner": 2, "rollout_fragment_length": 8} | env_runners
    return (
        PPOConfig()
        .environment(env, env_config={"num_agents": 2} if env in BY_NUMBER else {})
        .multi_agent(policies=[*policies], policy_mapping_fn=mapping, policies_to_train=to_train)
        .rl_module(model_config=SMALL)
        .env_runners(num_env_runners=0, **env_runners)
        .debugging(seed=7)
    )


def with_modules(config: PPOConfig, **classes: type | None) -> PPOConfig:
    """Modules of given classes by policy; None: PPO's default."""
    specs = {
        name: RLModuleSpec(module_class=kind) if kind else RLModuleSpec(model_config=SMALL)
        for name, kind in classes.items()
    }
    return config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


def shared(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return "shared"


def by_number(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    return f"p{agent_id}"


def by_role(agent_id: str, *args: Any, **kwargs: Any) -> str:
    """Map an agent such as "speed_1_prey_0" to its role, "speed_1_prey"."""
    return agent_id.rsplit("_", 1)[0]


SPECIES = ("speed_1_predator", "speed_1_prey")
TRADERS = ("market_maker", "momentum_trader", "arbitrageur")


@typical("plain", "ray-project/ray: rllib/examples/multi_agent/multi_agent_cartpole.py", calls=LONGER)
def each_its_own_policy() -> PPOConfig:
    """A benchmark: independent agents with a policy each, many envs in a runner."""
    return base(known_envs.CartPoles, ["p0", "p1"], by_number, num_envs_per_env_runner=4)


@typical("plain", "after doesburg11/PredPreyGrass: predpreygrass/rllib/v1_moore, less its callback")
def policies_by_species() -> PPOConfig:
    """An ecosystem: agents are born and starve, policies belong to species, which names tell."""
    return base(envs.Meadow, SPECIES, by_role)


@typical("plain", "after the env in ben-ogden/rllib-trading-arena: training/multi_agent_trainer.py", calls=LONGER)
def traders() -> PPOConfig:
    """A market: bounded Box actions of several dimensions, one shared info, steps counted by agents."""
    config = base(envs.Market, TRADERS, by_role)
    config.count_steps_by = "agent_steps"
    return config


@typical(
    "plain", "flatland-association/flatland-rl: flatland/ml/ray/examples/flatland_training_with_parameter_sharing.py"
)
def parameter_sharing() -> PPOConfig:
    """Trains: all share one policy; who has arrived leaves."""
    return base(envs.Railway, ["shared"], shared, num_envs_per_env_runner=3)


@typical(
    "plain",
    "MatthewCWeston/rllib_sw: callbacks/pfsp_callback.py",
    calls=(*CALLS, NewMapping(["v1", "v2"]), Sample(num_timesteps=20), GetMetrics()),
)
def league() -> PPOConfig:
    """Self-play against a growing league: another mapping function between iterations, matches counted per call."""
    config = base(envs.Nim, ["main", "v1", "v2"], mappings.against_league(["v1"]), to_train=["main"])
    return with_modules(config, main=Masked, v1=Masked, v2=Masked).callbacks(callbacks.Matches)


@typical(
    "plain",
    "after ray-project/ray: rllib/examples/multi_agent/self_play_with_open_spiel.py, less its callback",
    mixes_columns=True,
)
def self_play() -> PPOConfig:
    """A board game: sides change by the hash of the episode's id, the opponent does not learn."""
    config = base(TicTacToe, ["main", "random"], mappings.by_id(), to_train=["main"])
    return with_modules(config, main=None, random=Heuristic)


@typical("plain", "after the traffic example in RLlib's guide to multi-agent envs", draws_policies=True)
def drawn_policies() -> PPOConfig:
    """Traffic: cars come late, and one of two policies is drawn for each."""
    return base(envs.Crossing, ["light", "car1", "car2"], mappings.by_chance)


@typical(
    "plain",
    "ray-project/ray: rllib/examples/multi_agent/multi_agent_pendulum.py",
    calls=(Sample(), GetMetrics()),
    drops_episodes=True,
)
def pendulums() -> PPOConfig:
    """Continuous control in whole episodes, which end by truncation."""
    config = base(known_envs.Pendulums, ["p0", "p1"], by_number, batch_mode="complete_episodes")
    return config.env_runners(num_envs_per_env_runner=1)


@typical("plain", "ray-project/ray: rllib/examples/multi_agent/pettingzoo_parameter_sharing.py")
def agents_in_a_cycle() -> PPOConfig:
    """PettingZoo's AEC API: agents act one after the other, all with one policy."""
    return base(AgentsInACycle, ["shared"], shared)


@typical(
    "plain", "ray-project/ray: rllib/examples/multi_agent/custom_heuristic_policy.py", calls=LONGER, mixes_columns=True
)
def against_a_heuristic() -> PPOConfig:
    """One learns beside one that has no network."""
    config = base(known_envs.CartPoles, ["p0", "p1"], by_number, to_train=["p0"])
    return with_modules(config, p0=None, p1=Heuristic)


@typical("plain", "ray-project/ray: rllib/examples/multi_agent/different_spaces_for_agents.py", mixes_columns=True)
def different_spaces() -> PPOConfig:
    """Agents with different observations and actions."""
    return base(known_envs.SpeakerListener, ["speaker_0", "listener_0"], lambda agent_id, *a, **kw: agent_id)


@typical(
    "plain",
    "after ray-project/ray: rllib/tuned_examples/ppo/multi_agent_stateless_cartpole_ppo.py, less its filter",
    calls=LONGER,
)
def recurrent() -> PPOConfig:
    """A config whose policies have LSTMs."""
    return base(known_envs.CartPoles, ["p0", "p1"], by_number).rl_module(model_config=LSTM)


@typical("plain", "after ray-project/ray: rllib/examples/rl_modules/action_masking_rl_module.py, for two players")
def action_masks() -> PPOConfig:
    """A game by turns: Dict observations with masks, a module that forbids actions, last rewards for all."""
    return with_modules(base(envs.Nim, ["shared"], shared), shared=Masked)


@typical(
    "callbacks",
    "doesburg11/PredPreyGrass: predpreygrass/rllib/v4_select_coef_HBP/train_rllib_ppo_multiagentenv.py",
    calls=WHOLE,
    drops_episodes=True,
)
def returns_by_species() -> PPOConfig:
    """An ecosystem: at the end, get_return(), and get_rewards() summed up by species."""
    config = base(envs.Meadow, SPECIES, by_role, batch_mode="complete_episodes")
    return config.callbacks(callbacks.ReturnsByRole)


@typical(
    "callbacks",
    "flatland-association/flatland-baselines: "
    "flatland_baselines/simple_rllib_ppo/callbacks/flatland_metrics_callback.py",
    calls=WHOLE,
    drops_episodes=True,
)
def arrivals() -> PPOConfig:
    """Trains: at the end, states of the unwrapped env and rewards make a dozen metrics."""
    config = base(envs.Railway, ["shared"], shared, num_envs_per_env_runner=3, batch_mode="complete_episodes")
    return config.callbacks(callbacks.Arrivals)


@typical(
    "callbacks",
    "flatland-association/flatland-rl: flatland/ml/ray/flatland_metrics_and_trajectory_callback.py",
    calls=WHOLE,
    drops_episodes=True,
)
def trajectories() -> PPOConfig:
    """Trains: positions in custom_data at start and step; rewards, actions and infos of the whole at the end."""
    return base(envs.Railway, ["shared"], shared, batch_mode="complete_episodes").callbacks(callbacks.Trajectories)


@typical("callbacks", "AVSLab/bsk_rl: src/bsk_rl/utils/rllib/callbacks.py")
def satellites() -> PPOConfig:
    """Simulated satellites: metrics under each agent's name, and means."""
    return base(known_envs.Spread, ["shared"], shared).callbacks(callbacks.OfEachSatellite)


@typical("callbacks", "ray-project/ray: rllib/callbacks/tests/test_callbacks_on_env_runner.py", calls=LONGER)
def counted_events() -> PPOConfig:
    """All events counted in the callback object; lengths of prev_episode_chunks checked at the end."""
    return base(known_envs.CartPoles, ["p0", "p1"], by_number).callbacks(callbacks.Counting)


@typical("callbacks", "ray-project/ray: rllib/examples/envs/env_rendering_and_recording.py")
def pictures() -> PPOConfig:
    """Pictures of the env in each step; the best and the worst episode of a call are logged."""
    return base(envs.Market, TRADERS, by_role).callbacks(callbacks.Pictures)


@typical("callbacks", "after ray-project/ray#16683, and an excerpt of a project that logs success")
def success_in_infos() -> PPOConfig:
    """Robots: get_infos(-1) in each step, last infos, len() and agent_ids at the end."""
    return base(envs.Railway, ["shared"], shared).callbacks(callbacks.LastInfos)


@typical("callbacks", "ray-project/ray: rllib/examples/multi_agent/utils/self_play_callback.py", mixes_columns=True)
def win_rate() -> PPOConfig:
    """A board game: module_for() shows which agent learns, rewards which one wins."""
    return self_play().callbacks(callbacks.WinRate)


@typical("flattened", "ray-project/ray: rllib/examples/multi_agent/rock_paper_scissors_learned_vs_learned.py")
def flattened_numbers() -> PPOConfig:
    """A matrix game: Discrete observations as one-hot vectors, a policy each."""
    config = base(
        RockPaperScissors,
        ["p0", "p1"],
        lambda agent_id, *args, **kwargs: agent_id.replace("player_", "p"),
        env_to_module_connector=lambda env, spaces, device: FlattenObservations(multi_agent=True),
    )
    return config.rl_module(model_config=LSTM)


@typical("flattened", "after an excerpt of a project like ini/multigrid: scripts/train.py; and ray-project/ray#59849")
def flattened_dicts() -> PPOConfig:
    """A grid world: Dict observations of several agents, flattened by RLlib's connector, a policy each."""
    return base(
        envs.Rooms,
        ["p0", "p1"],
        by_number,
        env_to_module_connector=lambda env, spaces, device: FlattenObservations(multi_agent=True),
    )


@typical(
    "mapping", "reconstructed: of the project no more is known than that its mapping function reads the running episode"
)
def mapped_by_crowd() -> PPOConfig:
    """Traffic: the mapping function looks at the agents of the running episode."""
    return base(envs.Crossing, ["light", "car1", "car2"], mappings.by_crowd)
