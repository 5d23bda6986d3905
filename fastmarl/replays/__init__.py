"""Flight recorder: record the actions and seeds of a run, replay any episode from them, and make videos."""

from fastmarl.replays.playback import Replay, replay
from fastmarl.replays.recording import RecordedEpisode, Recording
from fastmarl.replays.scene import ReplayStep
from fastmarl.replays.video import VideoCallback

__all__ = ["RecordedEpisode", "Recording", "Replay", "ReplayStep", "VideoCallback", "replay"]
