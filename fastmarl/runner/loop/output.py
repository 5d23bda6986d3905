"""Writers of runner output: Parquet files of episodes, and action records.

Their modules are imported only if an option requires them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import ConfigError

if TYPE_CHECKING:
    from fastmarl.offline.writer import ParquetWriter as ParquetWriter
    from fastmarl.offline.writer_thread import Parcel as Parcel
    from fastmarl.replays.writer import ActionWriter as ActionWriter


def make_output(config: EnvRunnerConfig) -> ParquetWriter | None:
    """Create the episode writer if `output` is set.

    Raises:
        ConfigError: If an option of the writer is invalid, or pyarrow is not installed.
        OfflineError: If the directory is not writable.
    """
    if config.output is None:
        return None
    from fastmarl.offline.writer import ParquetWriter

    return ParquetWriter(
        config.output,
        max_rows_per_file=config.output_max_rows_per_file,
        worker_index=config.worker_index,
        **config.output_config,
    )


def make_recorder(config: EnvRunnerConfig, env: Any, before: ActionWriter | None = None) -> ActionWriter | None:
    """Create the action writer if `record_actions` is set.

    Args:
        before: The previous writer; returned again if the header of its file still describes the run, else closed.

    Raises:
        ConfigError: If episodes of this env cannot be replayed.
        RecordingError: If the directory is not writable.
    """
    if config.record_actions is None:
        return None
    if not getattr(env, "seeds_each_episode", True):
        raise ConfigError(f"record_actions requires a seed per episode, but the envs of {type(env).__name__} share a "
                          f"random generator (seeds_each_episode is False); set record_actions to None")  # fmt: skip
    from fastmarl.replays.meta import described
    from fastmarl.replays.writer import ActionWriter

    meta = described(config, env, config.num_envs_per_env_runner)
    if before is not None and before.meta == meta:
        return before
    recorder = ActionWriter(config.record_actions, meta, late_rewards=config.late_rewards == "accumulate")
    if before is not None:
        try:
            before.close()
        except BaseException:
            recorder.close()
            raise
    return recorder
