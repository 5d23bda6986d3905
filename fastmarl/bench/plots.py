"""What the plots of all commands share."""

from typing import Any

OURS, OTHERS, LIMIT = "#00897b", "#9e9e9e", "#c62828"  # colours


def open_frame(axes: Any) -> None:
    """Leave the axes' upper and right edges away."""
    axes.spines[["top", "right"]].set_visible(False)
