"""Runners with every kind of module, connector and space that a policy may act with, and policies made of them."""

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.connectors import (
    AgentIndicator,
    EnvToModuleConnector,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from fastmarl.modules import DefaultRLModule, EpsilonGreedyRLModule, RLModule
from support.overheard import Overheard, Wander

BOX, IMAGE = gym.spaces.Box(-2, 2, (5,), np.float32), gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
NESTED = gym.spaces.Dict(
    {
        "x": gym.spaces.Box(-2, 2, (2,), np.float64),
        "y": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)]),
    }
)
CHOICE = gym.spaces.Discrete(4, start=-2)
PARTS = gym.spaces.MultiDiscrete([3, 2], start=[1, -1])
BOUNDED = gym.spaces.Box(np.float32([-3, 0]), np.float32([1, 0.25]))
BOTH = gym.spaces.Dict({"move": CHOICE, "turn": BOUNDED})
WIDE = gym.spaces.Box(-0.01, 0.02, (2, 2), np.float64)
TUPLE = gym.spaces.Tuple([gym.spaces.MultiBinary(3), gym.spaces.Dict({"x": PARTS, "y": WIDE})])
MASKED = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(4), "observation": BOX})
PARTS_MASKED = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(5), "observation": BOX})


class Plain(torch.nn.Module):
    """A torch module that is no RLModule."""

    def __init__(self, n_obs=5, n_logits=4):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(n_obs, 8), torch.nn.Tanh(), torch.nn.Linear(8, n_logits))

    def forward(self, batch):
        return {"action_dist_inputs": 9 * self.net(batch["obs"])}


class Chooser(RLModule):
    """Chooses its actions itself."""

    def setup(self):
        self.net = torch.nn.Linear(5, 4)

    def _forward(self, batch):
        return {"actions": self.net(batch["obs"]).argmin(-1)}


class Counter(RLModule):
    """Has a memory of its own: a sum of what it has seen."""

    def setup(self):
        self.net = torch.nn.Linear(10, 4)

    def get_initial_state(self):
        return {"deep": {"sum": np.full(5, 0.5, np.float32)}, "steps": np.zeros((), np.int64)}

    def _forward(self, batch):
        total = batch["state_in"]["deep"]["sum"] + batch["obs"][:, 0]
        logits = self.net(torch.cat([total, batch["obs"][:, 0]], -1)) + batch["state_in"]["steps"][:, None] % 3
        state = {"deep": {"sum": total}, "steps": batch["state_in"]["steps"] + 1}
        return {"action_dist_inputs": logits[:, None], "state_out": state}


class Widened(DefaultRLModule):
    """A default net with other layers, which compiled kernels run."""

    def setup(self):
        super().setup()
        self.trunk = torch.nn.Sequential(
            torch.nn.Linear(5, 20), torch.nn.LayerNorm(20), torch.nn.Linear(20, 9), torch.nn.ELU()
        )
        self.pi, self.vf = torch.nn.Linear(9, 4), torch.nn.Linear(9, 1)


class Average(EnvToModuleConnector):
    """Keeps something of each agent."""

    per_agent_state = ("average_L",)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        self.average_L = np.zeros((0, *input_observation_space.shape), np.float32)
        return gym.spaces.Box(-np.inf, np.inf, input_observation_space.shape, np.float32)

    def __call__(self, obs, rows):
        missing = rows.n_lanes - len(self.average_L)
        if missing > 0:
            self.average_L = np.concatenate([self.average_L, np.full((missing, *obs.shape[1:]), np.nan, np.float32)])
        for lane, is_first, each in zip(rows.lanes, rows.is_first, obs, strict=True):
            self.average_L[lane] = each if is_first else 0.5 * self.average_L[lane] + 0.5 * each
        return self.average_L[rows.lanes]


def spec(module_class, **options):
    return fastmarl.RLModuleSpec(module_class=module_class, **options)


SMALL = {"fcnet_hiddens": [16, 16]}
LSTM = {**SMALL, "use_lstm": True, "lstm_cell_size": 8}
PREVIOUS = [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3), FlattenObservations()]
ALL = [MeanStdFilter(), *PREVIOUS, FrameStacking(3)]
# name -> (observation space, action space, options)
KINDS = {
    "default": (BOX, CHOICE, {}),
    "default, a value net of its own": (BOX, CHOICE, {"model_config": {**SMALL, "vf_share_layers": False}}),
    "default, in torch": (BOX, CHOICE, {"native_inference": False}),
    "default, bytes": (gym.spaces.Box(0, 255, (3, 2), np.uint8), CHOICE, {}),
    "default, doubles kept": (gym.spaces.Box(-2, 2, (5,), np.float64), CHOICE, {"keep_float64": True}),
    "default, doubles": (gym.spaces.Box(-2, 2, (5,), np.float64), CHOICE, {}),
    "other layers": (BOX, CHOICE, {"rl_module_spec": spec(Widened)}),
    "action values": (BOX, CHOICE, {"rl_module_spec": spec(EpsilonGreedyRLModule, model_config={
        **SMALL, "epsilon": [[0, 1], [50, 0.3]]})}),
    "CNN": (IMAGE, CHOICE, {}),
    "LSTM": (BOX, CHOICE, {"model_config": LSTM}),
    "LSTM, apart": (NESTED, BOUNDED, {"model_config": {**LSTM, "vf_share_layers": False}}),
    "nested observations": (NESTED, CHOICE, {}),
    "masks in observations": (MASKED, CHOICE, {}),
    "masks of parts in observations": (PARTS_MASKED, PARTS, {}),
    "masks in infos": (BOX, CHOICE, {"env_config": {"masks": "infos"}}),
    "masks of parts in infos": (BOX, PARTS, {"env_config": {"masks": "infos"}}),
    "any torch module": (BOX, CHOICE, {"rl_module_spec": spec(lambda **options: Plain())}),
    "own actions": (BOX, CHOICE, {"rl_module_spec": spec(Chooser)}),
    "own memory": (BOX, CHOICE, {"rl_module_spec": spec(Counter)}),
    "parts": (BOX, PARTS, {}),
    "bits": (BOX, gym.spaces.MultiBinary((2, 2)), {}),
    "normalised": (BOX, BOUNDED, {}),
    "normalised, doubles": (BOX, WIDE, {"model_config": {**SMALL, "free_log_std": True}}),
    "clipped": (BOX, BOUNDED, {"normalize_actions": False, "clip_actions": True}),
    "as they are": (BOX, BOUNDED, {"normalize_actions": False}),
    "unbounded": (BOX, gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), {}),
    "a number": (BOX, gym.spaces.Box(-1, 1, (), np.float32), {}),
    "a dict": (BOX, BOTH, {}),
    "a tuple": (BOX, TUPLE, {}),
    "filter": (BOX, CHOICE, {"env_to_module_connector": MeanStdFilter(clip_by_value=None)}),
    "filter of nested": (NESTED, CHOICE, {"env_to_module_connector": [MeanStdFilter(), FlattenObservations()]}),
    "filter beside masks": (MASKED, CHOICE, {"env_to_module_connector": MeanStdFilter(de_std_to_one=False)}),
    "flattened masks": (MASKED, CHOICE, {"env_to_module_connector": FlattenObservations()}),
    "an indicator": (NESTED, CHOICE, {"env_to_module_connector": [FlattenObservations(), AgentIndicator([*"cab"])]}),
    "frames": (BOX, CHOICE, {"env_to_module_connector": FrameStacking(4)}),
    "frames of images": (IMAGE, CHOICE, {"env_to_module_connector": FrameStacking(2)}),
    "previous": (BOX, CHOICE, {"env_to_module_connector": PREVIOUS}),
    "previous, nested": (BOX, BOTH, {"env_to_module_connector": PREVIOUS, "reward_scale": 0.5}),
    "previous, clipped": (BOX, BOUNDED, {"env_to_module_connector": PREVIOUS, "clip_rewards": (-0.5, 1)}),
    "all, and memory": (NESTED, PARTS, {"env_to_module_connector": ALL, "model_config": LSTM}),
    "own connector": (BOX, CHOICE, {"env_to_module_connector": [MeanStdFilter(), Average(), FrameStacking(2)]}),
    # Several of those above at once: a graph takes seconds.
    "filter beside masks of parts": (PARTS_MASKED, PARTS,
                                     {"env_to_module_connector": MeanStdFilter(de_std_to_one=False)}),
    "filter of nested, a tuple": (NESTED, TUPLE, {"env_to_module_connector": [MeanStdFilter(), FlattenObservations()]}),
    "CNN, clipped": (IMAGE, BOUNDED, {"normalize_actions": False, "clip_actions": True,
                                      "model_config": {**SMALL, "free_log_std": True}}),
}  # fmt: skip
OWN_MODULES = {
    "any torch module": Plain,
    "own actions": lambda: Chooser(BOX, CHOICE),
    "own memory": lambda: Counter(BOX, CHOICE),
    "other layers": lambda: Widened(BOX, CHOICE),
}
OWN_CONNECTORS = {"own connector": [MeanStdFilter(), Average(), FrameStacking(2)]}


def overheard_runner(kind, num_envs=1):
    """A runner that has sampled, so that connectors and random weights are what they are after training."""
    observation_space, action_space, options = KINDS[kind]
    config = {"observation_space": observation_space, "action_space": action_space} | options.get("env_config", {})
    options = (
        {"model_config": {} if "rl_module_spec" in options else SMALL, "seed": 7} | options | {"env_config": config}
    )
    env = Overheard(Wander)
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=env, num_envs_per_env_runner=num_envs, **options)
    )
    runner.sample(num_timesteps=100)
    with torch.no_grad():
        for parameter in runner.module.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return runner, env


def policies_of(runner, kind, folder):
    """One of the runner, one of its checkpoint, by name."""
    modules = {"default_policy": OWN_MODULES[kind]()} if kind in OWN_MODULES else None
    connectors = {"default_policy": OWN_CONNECTORS[kind]} if kind in OWN_CONNECTORS else None
    path = runner.save_to_path(folder)
    return {
        "runner": fastmarl.Policy.from_runner(runner),
        "checkpoint": fastmarl.Policy.from_checkpoint(path, modules, connectors=connectors),
    }


def policy_of(kind, folder, source="checkpoint"):
    runner, _ = overheard_runner(kind)
    return policies_of(runner, kind, folder)[source]
