"""Where a runner records what it samples."""

from fastmarl.config import EnvRunnerConfig
from fastmarl.offline import ParquetWriter


def make_output(config: EnvRunnerConfig) -> ParquetWriter | None:
    """By the option `output`.

    Raises:
        ConfigError: an option of the writer can't be right, or pyarrow is not installed.
        OfflineError: the folder can't be written to.
    """
    if config.output is None:
        return None
    return ParquetWriter(
        config.output,
        max_rows_per_file=config.output_max_rows_per_file,
        worker_index=config.worker_index,
        **config.output_config,
    )
