"""The expected effects of connectors on a world: every agent's history in lists, every statistic recomputed."""

from collections import defaultdict
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.connectors import EnvToModuleConnector, FrameStacking, MeanStdFilter, PrevActionsPrevRewards
from fastmarl.core.spaces.structs import map_struct
from support.replay import ACTION_SPACES, decode, encode, leaves
from support.runner import AgentChunk, Episode, ReferenceRunner, Trajectory
from support.worlds import Tick, World, action_of

N_ACTIONS, N_REWARDS, N_FRAMES = 2, 3, 4
SCALE, BOUNDS = 0.5, (-0.25, 0.375)


class Tagged(EnvToModuleConnector):
    """Puts two numbers beside the observation, to which nothing is done: its serial number, by which policies here
    live, and how many observations the agent has had before, counted by lane."""

    per_agent_state = ("count_L",)

    def __init__(self, kind: str):
        self.kind = kind
        self.count_L = np.zeros(0, np.int64)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        tag = gym.spaces.Discrete(2**40)
        return gym.spaces.Dict({"obs": input_observation_space, "serial": tag, "t": tag})

    def __call__(self, obs, rows):
        if len(self.count_L) < rows.n_lanes:
            self.count_L = np.concatenate([self.count_L, np.full(rows.n_lanes - len(self.count_L), -99)])
        self.count_L[rows.lanes] = np.where(rows.is_first, 0, self.count_L[rows.lanes] + 1)
        serials = decode(self.kind, map_struct(lambda leaf: torch.tensor(leaf), obs)).numpy()
        return {"obs": obs, "serial": serials, "t": self.count_L[rows.lanes]}


class Checked(EnvToModuleConnector):
    """Sees to it that connectors of which nothing is recorded know an agent's first observation, too."""

    records = False
    per_agent_state = ()

    def __call__(self, obs, rows):
        assert not rows.is_final
        assert (rows.is_first == (obs["_orig_obs"]["t"] == 0)).all()
        return obs


class SeeingPolicy(torch.nn.Module):
    """Answers `action_of(serial)`, and records all that it saw as "saw", float64 [n, numbers]."""

    def __init__(self, action_kind: str):
        super().__init__()
        self.action_kind = action_kind

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        obs = batch["obs"]
        serials = obs["_orig_obs"]["serial"]
        actions = torch.tensor(
            [action_of(self.action_kind, serial) for serial in serials.tolist()],
            dtype=torch.float32 if self.action_kind == "box" else torch.int64,
        )
        two = torch.stack([serials, -serials], dim=-1).to(torch.float32)
        return {"actions": actions, "serial": serials, "two": two, "saw": torch.from_numpy(side_by_side(obs))}


def side_by_side(obs: Any) -> np.ndarray:
    """float64 [n, numbers]: all leaves of recorded or seen observations."""
    parts = [np.asarray(leaf, np.float64) for leaf in leaves(obs)]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)


def connected_options(world: World) -> dict[str, Any]:
    """The runner's options for all connectors at once."""
    return {
        "policies": {module: SeeingPolicy(world.action_kinds[module]) for module in world.obs_kinds},
        "env_to_module_connector": {
            module: [
                Tagged(kind),
                MeanStdFilter(clip_by_value=None),
                PrevActionsPrevRewards(n_prev_actions=N_ACTIONS, n_prev_rewards=N_REWARDS),
                FrameStacking(N_FRAMES),
                Checked(),
            ]
            for module, kind in world.obs_kinds.items()
        },
        "reward_scale": SCALE,
        "clip_rewards": BOUNDS,
    }


def recorded_rewards(rewards: list[float]) -> list[float]:
    return [min(max(SCALE * reward, BOUNDS[0]), BOUNDS[1]) for reward in rewards]


class ConnectedReference(ReferenceRunner):
    """Also says what is recorded of each observation, by its serial number.

    Attributes:
        arrived: module -> serial numbers of the observations that its agents were sent, in order.
        recorded: serial number -> the leaves on record.
    """

    min_lookback_rows = max(N_FRAMES, N_ACTIONS, N_REWARDS) - 1

    def __init__(self, world: World, *, batched: bool = False):
        self.arrived: dict[str, list[int]] = defaultdict(list)
        self.recorded: dict[int, list[np.ndarray]] = {}
        self._flat: dict[str, list[np.ndarray]] = defaultdict(list)
        super().__init__(world, batched=batched)

    def _observe(self, episode: Episode, tick: Tick) -> None:
        super()._observe(episode, tick)
        for agent in tick.obs:
            trajectory = episode.current.get(agent)
            if trajectory and not trajectory.is_done:
                self._record(trajectory)

    def _record(self, trajectory: Trajectory) -> None:
        module, serial = trajectory.module, trajectory.obs[-1]
        self.arrived[module].append(serial)
        raw = leaves(encode(self.world.obs_kinds[module], serial))
        self._flat[module].append(np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in raw]))
        all_seen = np.stack(self._flat[module])
        normalised = (all_seen[-1] - all_seen.mean(0)) / (all_seen.std(0) + 1e-8)
        ends = np.cumsum([leaf.size for leaf in raw])
        before = [0.0] * N_REWARDS + recorded_rewards(trajectory.rewards)
        self.recorded[serial] = [
            *(normalised[end - leaf.size : end].reshape(leaf.shape) for leaf, end in zip(raw, ends, strict=True)),
            np.array(serial),
            np.array(len(trajectory.obs) - 1),
            self._actions_before(trajectory),
            np.array(before[-N_REWARDS:]),
        ]

    def _actions_before(self, trajectory: Trajectory) -> np.ndarray:
        kind = self.world.action_kinds[trajectory.module]
        space = ACTION_SPACES[kind]
        before = trajectory.obs[:-1][-N_ACTIONS:]
        given = [gym.spaces.flatten(space, np.array(action_of(kind, serial), space.dtype)) for serial in before]
        lacking = [np.zeros(gym.spaces.flatdim(space))] * (N_ACTIONS - len(before))
        return np.concatenate([*lacking, *given])

    def _agent_chunk(self, trajectory: Trajectory, start: int, end: int) -> AgentChunk | None:
        part = super()._agent_chunk(trajectory, start, end)
        if part is not None:
            part.rewards = recorded_rewards(part.rewards)
            part.before = trajectory.obs[: part.t_started]
        return part

    def record_of(self, part: AgentChunk) -> np.ndarray:
        """float64 [lookback + n + 1, numbers]: the recorded observations."""
        return np.stack([_in_a_row(self.recorded[serial]) for serial in part.obs])

    def seen_in(self, part: AgentChunk) -> np.ndarray:
        """float64 [n + 1, numbers]: what the module sees at the observations after the lookback."""
        history = part.before + part.obs[part.lookback :]
        ends = range(len(part.before) + 1, len(history) + 1)
        return np.stack([_in_a_row(self._stack(history[:end][-N_FRAMES:])) for end in ends])

    def _stack(self, serials: list[int]) -> list[np.ndarray]:
        frames = [self.recorded[serial] for serial in serials]
        of_leaves = [[np.atleast_1d(leaf) for leaf in of_leaf] for of_leaf in zip(*frames, strict=True)]
        tags = len(of_leaves) - 4, len(of_leaves) - 3
        return [
            of_leaf[-1] if i in tags
            else np.concatenate([np.zeros_like(of_leaf[0])] * (N_FRAMES - len(frames)) + of_leaf, -1)
            for i, of_leaf in enumerate(of_leaves)
        ]  # fmt: skip


def _in_a_row(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts])
