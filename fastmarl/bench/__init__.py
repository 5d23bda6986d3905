"""Compare a runner's speed with its limit: the bare environments and networks. See `measure_efficiency()`."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.bench.efficiency import Efficiency as Efficiency
    from fastmarl.bench.efficiency import measure_efficiency as measure_efficiency

__all__, __getattr__ = imported_when_used(__name__)
