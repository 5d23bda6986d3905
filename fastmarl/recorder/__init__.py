"""The flight recorder: actions and seeds of a run on record, from which any episode is made again; and videos."""

from fastmarl.recorder.playback import Replay, replay
from fastmarl.recorder.recording import RecordedEpisode, Recording
from fastmarl.recorder.scene import ReplayStep
from fastmarl.recorder.video import VideoCallback

__all__ = ["RecordedEpisode", "Recording", "Replay", "ReplayStep", "VideoCallback", "replay"]
