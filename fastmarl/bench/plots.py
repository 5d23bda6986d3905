"""What the plots of all commands share."""

from typing import Any

OURS, OTHERS, LIMIT = "#00897b", "#9e9e9e", "#c62828"  # colours
LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # behind a label that a line may cross


def open_frame(axes: Any) -> None:
    """Leave the axes' upper and right edges away."""
    axes.spines[["top", "right"]].set_visible(False)
