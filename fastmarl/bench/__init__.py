"""Speed of a runner relative to its limit, the bare environments and networks. See `measure_relative_speed()`."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.bench.relative_speed import RelativeSpeed as RelativeSpeed
    from fastmarl.bench.relative_speed import measure_relative_speed as measure_relative_speed

__all__, __getattr__ = imported_when_used(__name__)
