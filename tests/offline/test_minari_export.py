"""Recorded trajectories as Minari's datasets, read by Minari."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from support.optional import needed
from support.scenario_envs import Echo, respawn_env

import fastmarl
from fastmarl.errors import ConfigError
from fastmarl.offline import ParquetReader, ParquetWriter, to_minari

pytestmark = [
    pytest.mark.needs("pyarrow", "minari", "h5py"),
    pytest.mark.filterwarnings("ignore:.*(is set to None|env_spec is None):UserWarning"),  # Minari's advice
]


@pytest.fixture(autouse=True)
def minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return needed("minari")


def record(path, config, calls):
    """Record one call per number of env steps; returns the spaces by module."""
    with fastmarl.MultiAgentEnvRunner(config) as runner, ParquetWriter(path) as writer:
        for n in calls:
            writer.write(runner.sample(num_timesteps=n, random_actions=True))
        return runner.get_spaces()


def test_chunks_become_complete_trajectories(tmp_path, minari):
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", num_envs_per_env_runner=2, seed=1)
    observation_space, action_space = record(tmp_path / "x", config, [20, 20, 20])["default_policy"]
    reader = ParquetReader(tmp_path / "x")
    made = to_minari(
        reader, "spread/test-v0", module_id="default_policy", observation_space=observation_space,
        action_space=action_space, description="two envs", algorithm_name="none",
    )  # fmt: skip
    dataset = minari.load_dataset("spread/test-v0")
    assert made.total_steps == dataset.total_steps == reader.num_rows() == 180
    assert (dataset.observation_space, dataset.action_space) == (observation_space, action_space)
    chunks = {}
    for chunk in (chunk for some in reader.iter_episodes() for chunk in some):
        if chunk.id_ in chunks:
            chunks[chunk.id_].concat_episode(chunk)
        else:
            chunks[chunk.id_] = chunk
    metadata = list(dataset.storage.get_episode_metadata(range(dataset.total_episodes)))
    assert len(metadata) == 3 * len(chunks) == 12
    for episode, of_episode in zip(dataset, metadata, strict=True):
        want = chunks[of_episode["eps_id"]].agent_episodes[of_episode["agent_id"]]
        np.testing.assert_array_equal(episode.observations, want.get_observations(), strict=True)
        np.testing.assert_array_equal(episode.actions, want.get_actions(), strict=True)
        np.testing.assert_array_equal(episode.rewards, want.get_rewards(), strict=True)
        assert len(episode) == (25 if want.is_done else 5)  # of 30 env steps each
        assert episode.truncations.tolist() == [False] * (len(episode) - 1) + [True]
        assert not episode.terminations.any()


def test_agents_that_come_again_have_trajectories_of_their_own(tmp_path):
    config = fastmarl.EnvRunnerConfig(env=respawn_env, respawn=True, policies={"p": Echo()})
    observation_space, action_space = record(tmp_path / "x", config, [3, 4, 5])["p"]
    reader = ParquetReader(tmp_path / "x")
    ends = [
        agent_episode.is_terminated
        for some in reader.iter_episodes()
        for chunk in some
        for agent_episode in chunk.agent_episodes.values()
    ]
    dataset = to_minari(
        reader, "respawn-v0", module_id="p", observation_space=observation_space, action_space=action_space
    )
    assert dataset.total_steps == reader.num_rows()
    assert sum(episode.terminations[-1] for episode in dataset) == sum(ends) > 1
    assert all(episode.terminations[-1] != episode.truncations[-1] for episode in dataset)


def test_images_and_nested_observations_come_back_as_they_were(tmp_path):
    space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), "tuple": gym.spaces.Tuple([gym.spaces.Discrete(4)])}
    )

    class Images(fastmarl.MultiAgentEnv):
        def __init__(self):
            self.possible_agents = self.agents = ["a"]
            self.observation_spaces, self.action_spaces = {"a": space}, {"a": gym.spaces.Discrete(2)}

        def reset(self, *, seed=None, options=None):
            self.t = 0
            space.seed(5)
            return {"a": space.sample()}, {}

        def step(self, actions):
            self.t += 1
            return {"a": space.sample()}, {"a": 1.0}, {"__all__": self.t == 3}, {"__all__": False}, {}

    record(tmp_path / "x", fastmarl.EnvRunnerConfig(env=lambda config: Images(), policies={"p": Echo()}), [3])
    reader = ParquetReader(tmp_path / "x")
    (episode,) = to_minari(
        reader, "images-v0", module_id="p", observation_space=space, action_space=gym.spaces.Discrete(2)
    )
    want = next(reader.iter_episodes())[0].agent_episodes["a"].get_observations()
    np.testing.assert_array_equal(episode.observations["image"], want["image"], strict=True)
    np.testing.assert_array_equal(episode.observations["tuple"][0], want["tuple"][0])
    assert episode.terminations.tolist() == [False, False, True]


def test_a_failed_export_does_not_block_the_next_try(tmp_path, monkeypatch, minari):
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", seed=1)
    spaces = dict(
        zip(("observation_space", "action_space"), record(tmp_path / "x", config, [30])["default_policy"], strict=True)
    )
    reader = ParquetReader(tmp_path / "x")

    def full(self, metadatas, episode_indices=None):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("minari.dataset._storages.hdf5_storage.HDF5Storage.update_episode_metadata", full)
        with pytest.raises(OSError, match="No space left"):
            to_minari(reader, "spread/again-v0", module_id="default_policy", **spaces)
    assert "spread/again-v0" not in minari.list_local_datasets()
    assert to_minari(reader, "spread/again-v0", module_id="default_policy", **spaces).total_steps == 90


def test_errors_name_missing_modules_and_packages(tmp_path, monkeypatch):
    spaces = {"observation_space": gym.spaces.Discrete(2), "action_space": gym.spaces.Discrete(2)}
    ParquetWriter(tmp_path / "x").close()
    with pytest.raises(ConfigError, match=r"has no steps of module 'q', only of \[\]"):
        to_minari(ParquetReader(tmp_path / "x"), "x-v0", module_id="q", **spaces)
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"needs Minari: pip install 'minari\[hdf5\]' "):
        to_minari(ParquetReader(tmp_path / "x"), "x-v0", module_id="q", **spaces)
