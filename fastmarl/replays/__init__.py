"""The flight recorder: actions and seeds of a run on record, from which any episode is made again; and videos."""

from fastmarl.replays.playback import Replay, replay
from fastmarl.replays.recording import RecordedEpisode, Recording
from fastmarl.replays.scene import ReplayStep
from fastmarl.replays.video import VideoCallback

__all__ = ["RecordedEpisode", "Recording", "Replay", "ReplayStep", "VideoCallback", "replay"]
