"""Episodes in Parquet files: what runners have sampled, to learn from it later. Needs the extra `io`."""

from fastmarl.offline.minari_export import to_minari
from fastmarl.offline.reader import ParquetReader
from fastmarl.offline.writer import ParquetWriter

__all__ = ["ParquetReader", "ParquetWriter", "to_minari"]
