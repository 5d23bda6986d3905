"""The names of `fastmarl.replays` under an older path."""

from fastmarl.replays import RecordedEpisode as RecordedEpisode
from fastmarl.replays import Recording as Recording
from fastmarl.replays import Replay as Replay
from fastmarl.replays import ReplayStep as ReplayStep
from fastmarl.replays import VideoCallback as VideoCallback
from fastmarl.replays import replay as replay
