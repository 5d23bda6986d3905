"""Storage of sampled episodes in Parquet files for offline learning. Requires the extra `io`."""

from fastmarl.offline.minari_export import to_minari
from fastmarl.offline.reader import ParquetReader
from fastmarl.offline.writer import ParquetWriter

__all__ = ["ParquetReader", "ParquetWriter", "to_minari"]
