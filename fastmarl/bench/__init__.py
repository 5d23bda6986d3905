"""How close a runner comes to its limit: the bare environments and the bare networks; see `measure_efficiency()`."""

from fastmarl.bench.efficiency import Efficiency as Efficiency
from fastmarl.bench.efficiency import measure_efficiency as measure_efficiency
