"""Flight recorder, which records the actions and seeds of a run, replays any episode from them, and renders videos."""

from fastmarl.replays.playback import Replay, replay
from fastmarl.replays.recording import RecordedEpisode, Recording
from fastmarl.replays.scene import ReplayStep
from fastmarl.replays.video import VideoCallback

__all__ = ["RecordedEpisode", "Recording", "Replay", "ReplayStep", "VideoCallback", "replay"]
