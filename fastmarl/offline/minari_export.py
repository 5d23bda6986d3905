"""Export of recorded trajectories to Minari datasets."""

from collections.abc import Hashable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.packages import how_to_install
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
    """Create a Minari dataset from the steps of a single module. Requires the extra `minari`.

    Minari has no multi-agent episodes, so the trajectory of each agent becomes an episode with the metadata "eps_id"
    and "agent_id". Chunks are joined. A trajectory whose end is not in the files is truncated at its last step.
    Actions are exported as returned by the module: numbered from 0 even if a Discrete space has another start, and
    normalised for a Box. Infos and outputs are left out. All trajectories are loaded into memory.

    Args:
        reader: The recorded episodes.
        dataset_id: Name in the Minari directory `MINARI_DATASETS_PATH`, for example "NAMESPACE/NAME-v0".
        module_id: Module to export.
        observation_space: Observation space of an agent, as in `runner.get_spaces()[module_id]`; the files do not
            contain spaces.
        action_space: Action space of an agent, from the same tuple.
        options: Arguments of `minari.create_dataset_from_buffers()`, for example `description`. `jpeg_encoding` is
            False by default, so that images are stored without loss.

    Returns:
        The new `minari.MinariDataset`.

    Raises:
        ConfigError: If Minari is not installed, or the module was not recorded.
        OfflineError: If a file is damaged or missing.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError as error:
        raise ConfigError(f"to_minari() needs Minari: {how_to_install('minari')}") from error
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
        minari.delete_dataset(dataset_id)  # an incomplete dataset would block the next attempt
        raise
    return dataset


def _trajectories(reader: ParquetReader, module_id: str) -> Iterator[SingleAgentEpisode]:
    """Yield complete trajectories in the order in which they ended, then trajectories without an end."""
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
        else:  # the steps in between are not in the files
            yield before
            before = agent_episode
        if before.is_done:
            yield before
        else:
            growing[key] = before
    yield from growing.values()


def _columns(trajectory: SingleAgentEpisode) -> dict[str, Any]:
    """Return the arguments of an `EpisodeBuffer`."""
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
