"""Members of str- and int-Enums in episodes: files have the plain strings and numbers that they are equal to."""

import enum

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.optional import needed

import fastmarl
from fastmarl.checkpoint import load_state, save_state
from fastmarl.legacy import JsonReader, JsonWriter, MultiAgentBatch, SampleBatch
from fastmarl.offline import ParquetReader
from fastmarl.replays import Recording


class Team(str, enum.Enum):  # noqa: UP042 - str() of an enum.StrEnum's member is its value
    RED = "red"
    BLUE = "blue"


class Rank(enum.IntEnum):
    LOW = 1


class Half(float, enum.Enum):
    HALF = 0.5


class Loud(str):
    def __str__(self):
        return self.upper()


class Duel(fastmarl.MultiAgentEnv):
    possible_agents = tuple(Team)
    box = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, config=None):
        self.observation_spaces = dict.fromkeys(Team, gym.spaces.Dict({Team.RED: self.box}))
        self.action_spaces = dict.fromkeys(Team, gym.spaces.Discrete(2))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._obs(), self._infos()

    def step(self, actions):
        self.t += 1
        return self._obs(), dict.fromkeys(Team, 1.0), {"__all__": self.t >= 5}, {"__all__": False}, self._infos()

    def _obs(self):
        return {team: {Team.RED: np.zeros(2, np.float32)} for team in Team}

    def _infos(self):
        info = {Team.BLUE: [Team.RED, Rank.LOW, Half.HALF], Rank.LOW: (Loud("x"), np.str_("y"))}
        return {**dict.fromkeys(Team, info), "__common__": {"first": Team.RED}}


INFO = {"blue": ["red", 1, 0.5], 1: ("x", np.str_("y"))}  # as it comes back


@pytest.mark.needs("pyarrow")
def test_names_and_infos_in_parquet_files(tmp_path):
    config = fastmarl.EnvRunnerConfig(
        env=Duel, output=tmp_path, seed=0, policies=list(Team), policy_mapping_fn=lambda agent, episode: agent
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        (sampled,) = runner.sample(num_timesteps=5)
    ((got,),) = ParquetReader(tmp_path).iter_episodes()
    assert repr(list(got.agent_episodes)) == "['red', 'blue']"
    for agent, part in got.agent_episodes.items():
        assert type(part.module_id) is str and part.module_id == agent
        assert_same(part.get_infos(), [INFO] * 6, "infos")
        assert repr(list(part.get_observations())) == "['red']"
        assert np.array_equal(part.get_rewards(), sampled.agent_episodes[agent].get_rewards())
    assert repr(got.get_common_infos()[0]) == "{'first': 'red'}"
    reader = ParquetReader(tmp_path)
    assert repr(reader.module_ids) == repr(sorted(reader.info["modules"])) == "['blue', 'red']"
    (batch,) = reader.iter_batches(module_id="red", batch_size=100)
    assert batch["agent_id"].tolist() == ["red"] * 5 and list(batch["obs"]) == ["red"]
    assert "obs.red" in reader.info["modules"]["red"]
    table = needed("pyarrow.parquet").read_table(next(tmp_path.glob("data/red/*.parquet")))
    assert set(table["agent_id"].to_pylist()) == set(table["module_id"].to_pylist()) == {"red"}


def test_other_files(tmp_path):
    """Records of actions know agents by repr()."""
    save_state(tmp_path / "state", {Team.RED: [Team.BLUE, Loud("x"), Rank.LOW], Rank.LOW: Half.HALF})
    assert_same(load_state(tmp_path / "state"), {"red": ["blue", "x", 1], 1: 0.5}, "state")
    policies = {"policies": list(Team), "policy_mapping_fn": lambda agent, episode: agent}
    config = fastmarl.EnvRunnerConfig(env=Duel, record_actions=tmp_path / "record", seed=0, **policies)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.sample(num_timesteps=5)
    recording = Recording(tmp_path / "record")
    assert list(recording.read(recording[0]).modules) == ["red", "blue"]
    replayed = fastmarl.replay(recording, 0)
    assert [part.module_id for part in replayed.agent_episodes.values()] == ["red", "blue"]


def test_batches_in_json_files(tmp_path):
    info = {Team.BLUE: [Team.RED, Rank.LOW], Rank.LOW: Loud("x")}
    batch = SampleBatch({"rewards": np.ones(1), "infos": np.array([info], object), "obs": {Team.RED: np.ones((1, 2))}})
    writer = JsonWriter(tmp_path, compress_columns=())
    writer.write(MultiAgentBatch({Team.RED: batch}, 1))
    writer.close()
    (got,) = JsonReader(tmp_path).read_all_files()
    assert_same(list(got.policy_batches), ["red"], "policies")
    assert_same(list(got.policy_batches["red"]["infos"]), [{"blue": ["red", 1], "1": "x"}], "infos")
    assert list(got.policy_batches["red"]["obs"]) == ["red"]
