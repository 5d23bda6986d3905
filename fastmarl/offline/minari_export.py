"""Recorded trajectories as a dataset of Minari."""

from collections.abc import Hashable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import ConfigError
from fastmarl.offline.json_values import agent_text
from fastmarl.offline.reader import ParquetReader


def to_minari(
    reader: ParquetReader,
    dataset_id: str,
    *,
    module_id: str,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    **options: Any,
) -> Any:
    """Make a Minari dataset of the steps of one module. Needs the extra `minari`.

    Minari has no multi-agent episodes: each agent's trajectory becomes an episode, whose metadata has "eps_id" and
    "agent_id". Chunks are joined. A trajectory whose end is not in the files is truncated at its last step. Actions are
    as the module has put them out: from 0 on, where a Discrete space has another start, and normalised for a Box. Infos
    and outputs are left out. All trajectories are in memory at once.

    Args:
        dataset_id: "NAMESPACE/NAME-v0", say, in Minari's folder, `MINARI_DATASETS_PATH`.
        observation_space, action_space: of one agent, as `runner.get_spaces()[module_id]` tells; files don't have them.
        options: of `minari.create_dataset_from_buffers()`, such as `description`. Unless they say otherwise,
            jpeg_encoding=False, so that images come back as they were.

    Returns:
        minari.MinariDataset

    Raises:
        ConfigError: Minari is not installed, or no such module was recorded.
        OfflineError: a file is damaged, or missing.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError as error:
        raise ConfigError('to_minari() needs Minari: pip install "fastmarl[minari]"') from error
    reader.check_module(module_id)
    trajectories = list(_trajectories(reader, module_id))
    dataset = minari.create_dataset_from_buffers(
        dataset_id,
        [EpisodeBuffer(**_columns(trajectory)) for trajectory in trajectories],
        observation_space=observation_space,
        action_space=action_space,
        **{"jpeg_encoding": False, **options},
    )
    try:
        dataset.storage.update_episode_metadata(
            {"eps_id": each.multi_agent_episode_id, "agent_id": agent_text(each.agent_id)} for each in trajectories
        )
    except BaseException:
        minari.delete_dataset(dataset_id)  # half of it would be in the way of the next try
        raise
    return dataset


def _trajectories(reader: ParquetReader, module_id: str) -> Iterator[SingleAgentEpisode]:
    """Whole ones in the order of their ends, then those without an end."""
    growing: dict[tuple[str | None, Hashable], SingleAgentEpisode] = {}
    chunks = (chunk for some in reader.iter_episodes() for chunk in some)
    for agent_episode in (each for chunk in chunks for each in chunk.agent_episodes.values()):
        if agent_episode.module_id != module_id or not len(agent_episode):
            continue
        key = agent_episode.multi_agent_episode_id, agent_episode.agent_id
        before = growing.pop(key, None)
        if before is None:
            before = agent_episode
        elif before.t == agent_episode.t_started:
            before.concat_episode(agent_episode)
        else:  # what was between them is not in the files
            yield before
            before = agent_episode
        if before.is_done:
            yield before
        else:
            growing[key] = before
    yield from growing.values()


def _columns(trajectory: SingleAgentEpisode) -> dict[str, Any]:
    """Of an `EpisodeBuffer`."""
    terminations, truncations = np.zeros((2, len(trajectory)), bool)
    terminations[-1] = trajectory.is_terminated
    truncations[-1] = trajectory.is_truncated or not trajectory.is_done
    return {
        "observations": trajectory.get_observations(),
        "actions": trajectory.get_actions(),
        "rewards": trajectory.get_rewards(),
        "terminations": terminations,
        "truncations": truncations,
    }
