"""Replays of recorded episodes, in which the env receives the recorded actions again."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import env_creator, may_be_named_by_a_file
from fastmarl.core.envs.time_limit import time_limited
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import RecordingError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.native._env_values import private_copy
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.replays.meta import env_config_in
from fastmarl.replays.recording import RecordedEpisode, Recording
from fastmarl.replays.scene import ReplayStep, Scene


@public("fastmarl.replays")
class Replay:
    """Replays an episode. It can be iterated over once, and yields a `ReplayStep` for the reset and each env step.

    ```python
    with Replay(Recording("runs/1"), 17) as replay:
        for step in replay:
            print(step.env_t, step.rewards)
    print(replay.episode.get_return())
    ```

    Args:
        recording: Directory of the record, or a `Recording` of it.
        episode: Index or id of the episode.
        env: Replacement of the recorded env, as in `EnvRunnerConfig`; required if the record names a class or function
            that this program has not used yet.
        env_config: Options to merge into the recorded `env_config`.
        render_mode: Render mode to add to `env_config` unless it has one; None adds none.

    Attributes:
        recorded: The RecordedEpisode.
        env: The env being stepped; None after `close()`.

    Raises:
        RecordingError: If the episode does not exist or is incomplete, or its env cannot be created from the record.
        ReplayError: If the replay diverges from the record, while iterating.
    """

    @exits_as_errors()
    def __init__(
        self,
        recording: Recording | str | os.PathLike,
        episode: int | str,
        *,
        env: Any = None,
        env_config: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ):
        recording = recording if isinstance(recording, Recording) else Recording(recording)
        self.recorded = recording[episode]
        self._actions = recording.read(self.recorded)
        self.env = _make_env(recording.folder, self.recorded, env, env_config or {}, render_mode)
        try:
            self._scene = Scene(self.recorded, self._actions, self.env)
        except BaseException:
            self.close()
            raise
        self._begun = False

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except Exception as another:
            if error is None:
                raise
            error.add_note(f"fastmarl: close() of the env also raised {another!r:.200}")

    @exits_as_errors()
    def close(self) -> None:
        """Close the env; closing twice is allowed."""
        env, self.env = self.env, None
        if env is not None and hasattr(env, "close"):
            env.close()

    @property
    def episode(self) -> MultiAgentEpisode:
        """The episode, available after it has been replayed to its end.

        Observations and rewards are as returned by the env, before any connectors; actions are as received by the env.

        Raises:
            RecordingError: If the replay has not reached the end, or the episode has several chunks because an agent
                respawned: see `chunks`.
        """
        if not self.chunks:
            raise RecordingError(f"episode {self.recorded.number} has no recorded env steps")
        if len(self.chunks) != 1:
            raise RecordingError(f"episode {self.recorded.number} has {len(self.chunks)} chunks, because "
                                 f"agents respawned; use `chunks`")  # fmt: skip
        return self.chunks[0]

    @property
    def chunks(self) -> list[MultiAgentEpisode]:
        """Chunks of the episode (one unless agents respawned); raises RecordingError before the end of the replay."""
        if self._scene.chunks is None:
            raise RecordingError(
                f"episode {self.recorded.number} has not been replayed to its end; iterate over it first"
            )
        return self._scene.chunks

    def __iter__(self) -> Iterator[ReplayStep]:
        if self._begun or self.env is None:
            raise RecordingError("a Replay can be iterated over only once, and not after close(); create a new one")
        self._begun = True
        yield from self._scene.play(self.env)


def replay(
    run: Recording | str | os.PathLike,
    episode: int | str,
    *,
    env: Any = None,
    env_config: Mapping[str, Any] | None = None,
    video: str | os.PathLike | None = None,
    fps: float | None = None,
    render_mode: str | None = "rgb_array",
) -> MultiAgentEpisode | list[MultiAgentEpisode]:
    """Replay a recorded episode and compare observations, rewards and ends with the record at every step.

    Args:
        run: Directory passed to `EnvRunnerConfig(record_actions=...)`, or a `Recording` of it.
        episode: Index or id of the episode.
        env: Replacement of the recorded env, as in `EnvRunnerConfig`; required if the record names a class or function
            that this program has not used yet.
        env_config: Options to merge into the recorded `env_config`.
        video: Path of an mp4 file to write; needs the extra `video`.
        fps: Frames per second; None for `metadata["render_fps"]` of the env, or 30.
        render_mode: Render mode to add to `env_config` if `video` is given, unless it has one; None adds none.

    Returns:
        The complete episode; if agents respawned in it, a list of its chunks in order, as a chunk contains one
        trajectory per agent. Its actions are the ones received by the environment; other module outputs are not
        recorded.

    Raises:
        RecordingError: If the episode does not exist or is incomplete, its env cannot be created from the record, or
            the video cannot be written.
        ReplayError: If the replay diverges from the record; the message names the first differing step.
    """
    from fastmarl.replays.video import VideoFile, frame_of, frames_per_second

    mode = None if video is None else render_mode
    with Replay(run, episode, env=env, env_config=env_config, render_mode=mode) as played:
        if video is None:
            for _ in played:
                pass
        else:
            with closing(VideoFile(video, frames_per_second(played.env, fps))) as file:
                for _ in played:
                    file.add(frame_of(played.env))
                file.finish()
    return played.episode if len(played.chunks) < 2 else played.chunks


def _make_env(
    folder: Path, recorded: RecordedEpisode, env: Any, given: Mapping[str, Any], render_mode: str | None
) -> Any:
    """Create the given env or, if it is None, the env that the record names."""
    meta = recorded.meta
    if env is None:
        env = _named_env(folder, meta)
    if "max_steps" in meta:
        env = time_limited(env, meta["max_steps"])
    config = env_config_in(meta)
    if config is None and not given:
        raise RecordingError(f"the env_config of the record in {folder} could not be recorded; pass it again: "
                             f"replay(..., env_config=...)")  # fmt: skip
    mode = {} if render_mode is None else {"render_mode": render_mode}
    context = EnvContext(
        {**(config or {}), **mode, **given},
        meta["worker_index"],
        recorded.env_index,
        remote=meta["remote"],
        num_workers=meta["num_env_runners"],
        recreated_worker=meta["incarnation"] > 0,
    )
    made = as_multi_agent_env(env_creator(env)(context))
    return SingleOfBatch(made) if isinstance(made, ArrayEnv) else made


def _named_env(folder: Path, meta: Mapping[str, Any]) -> str:
    """Return the name of the recorded env; raise RecordingError if there is none or it might name any function."""
    name = meta["env"]
    if name is None:
        raise RecordingError(f"the record in {folder} can't name its env ({meta['env_class']}), which was passed as an "
                             f"object; pass it again: replay(..., env=...)")  # fmt: skip
    if not may_be_named_by_a_file(name):
        raise RecordingError(f"the record in {folder} names {name!r} as its env, which this program has not used yet. "
                             f"Records may be untrusted, so such names are not imported. If you trust it, "
                             f"pass it yourself: replay(..., env={name!r}), or --env {name} on the command "
                             f"line")  # fmt: skip
    return name


class SingleOfBatch:
    """An env that plays the same episode in all envs of a batch (usually one) and returns the results of the first.

    Args:
        batch: Batch whose `seeds_each_episode` is True.
    """

    def __init__(self, batch: ArrayEnv):
        self.batch = batch
        self.possible_agents = batch.possible_agents
        self._places = {agent: (name, i) for name, agents in batch.groups.items() for i, agent in enumerate(agents)}
        self._obs_layouts = {name: RowLayout(batch.observation_spaces[ids[0]]) for name, ids in batch.groups.items()}
        self._action_layouts = {name: RowLayout(batch.action_spaces[ids[0]]) for name, ids in batch.groups.items()}
        self._live: set[Hashable] = set()

    @property
    def unwrapped(self) -> Any:
        return self.batch.unwrapped

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.batch.observation_spaces[agent_id]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.batch.action_spaces[agent_id]

    def reset(self, *, seed: int | None = None) -> tuple[dict, dict]:
        out, n = self.batch.new_arrays(), self.batch.num_envs
        self.batch.reset(np.arange(n), out, seeds=None if seed is None else [seed] * n)
        obs = self._observations(out)
        self._live = set(obs)
        return obs, self._infos(out)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        out = self.batch.new_arrays()
        for name, group in out.groups.items():
            group.present[...] = [agent in self._live for agent in self.batch.groups[name]]
        self.batch.step(self._arrays_of(actions), out)
        obs, rewards = self._observations(out), {}
        terminateds: dict[Any, bool] = {"__all__": bool(out.terminated[0])}
        truncateds: dict[Any, bool] = {"__all__": bool(out.truncated[0])}
        for agent, (name, i) in self._places.items():
            group, is_live = out.groups[name], agent in self._live
            if is_live or group.rewards[0, i]:
                rewards[agent] = float(group.rewards[0, i])
            if is_live or agent in obs:
                terminateds[agent], truncateds[agent] = bool(group.terminated[0, i]), bool(group.truncated[0, i])
        ended = {agent for agent in self._places if terminateds.get(agent) or truncateds.get(agent)}
        self._live = (self._live | set(obs)) - ended
        return obs, rewards, terminateds, truncateds, self._infos(out)

    def render(self) -> Any:
        return self.batch.render()

    def close(self) -> None:
        self.batch.close()

    def _arrays_of(self, actions: dict) -> dict[str, Any]:
        arrays = {}
        for name, agents in self.batch.groups.items():
            layout, shape = self._action_layouts[name], (self.batch.num_envs, len(agents))
            leaves = [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
            spaces = leaf_spaces(layout.space)
            for agent in agents:
                if agent in actions:
                    for leaf, value, space in zip(leaves, layout.leaves_of(actions[agent]), spaces, strict=True):
                        _check_choices(agent, np.asarray(value, leaf.dtype), space)
                        leaf[:, self._places[agent][1]] = value
            arrays[name] = layout.nest(leaves)
        return arrays

    def _observations(self, out: StepArrays) -> dict:
        obs = {}
        for agent, (name, i) in self._places.items():
            group, layout = out.groups[name], self._obs_layouts[name]
            if group.present[0, i]:
                obs[agent] = layout.nest([leaf[0, i].copy() for leaf in layout.leaves_of(group.obs)])
        return obs

    def _infos(self, out: StepArrays) -> dict:
        return {agent: private_copy(info, 0, agent, 0) for env_index, agent, info in out.infos if env_index == 0}


def _check_choices(agent: Hashable, action: np.ndarray, space: gym.Space) -> None:
    """Raise RecordingError for an action outside a discrete space, which compiled envs might use as an index."""
    if not isinstance(space, gym.spaces.Box) and not space.contains(action):
        raise RecordingError(f"agent {agent!r} has the recorded action {action}, which is not in {space}; was the "
                             f"env changed, or another env_config passed?")  # fmt: skip
