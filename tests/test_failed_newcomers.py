"""Agents that come in the last step before their env fails: what can be done with the chunk that was cut off."""

import copy
import pickle

import pytest
from support.exactly import assert_same_episodes
from support.process_runners import make_runner
from support.trouble import Trouble

import fastmarl
from fastmarl.batches import aligned, columns, sequences
from fastmarl.distributed import BackgroundSampler
from fastmarl.offline import ParquetReader


class Newcomers(Trouble):
    """Agent b comes at step 2, with an info, and step 3 fails."""

    def step(self, actions):
        if self.t == 2:
            raise OSError("simulator lost")
        _, _, *ends, _ = super().step(actions)
        return self._obs(), {"a": 1.0}, *ends, {agent: {"t": self.t} for agent in self._obs()}

    def _obs(self):
        seen = super()._obs()
        return seen if self.t == 2 else {"a": seen["a"]}


OPTIONS = {"num_envs": 2, "env_worker_start_method": "fork", "restart_failed_sub_environments": True}


def sampled(**options):
    with make_runner(Newcomers, **OPTIONS, **options) as runner:
        return runner.sample(num_timesteps=12)


USES = {
    "get_waiting_infos": lambda chunk: chunk.get_waiting_infos(),
    "agent_episodes": lambda chunk: chunk.agent_episodes,
    "slice": lambda chunk: chunk[1:],
    "get_state": lambda chunk: chunk.get_state(),
    "agents": lambda chunk: (chunk.get_agents_that_stepped(), chunk.get_agents_to_act()),
    "deepcopy": copy.deepcopy,
    "pickle": lambda chunk: pickle.loads(pickle.dumps(chunk)),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_truncated_chunks_can_be_used(use, mode):
    chunks = [chunk for chunk in sampled(mode=mode) if chunk.is_truncated]
    for chunk in chunks:
        use(chunk)
    assert len(chunks) > 2 and [(len(chunk), list(chunk.agent_episodes)) for chunk in chunks] == [(2, ["a"])] * len(
        chunks
    )
    assert [chunk.get_waiting_infos() for chunk in chunks] == [{}] * len(chunks)
    assert_same_episodes(pickle.loads(pickle.dumps(chunks)), chunks)


def test_batches():
    chunks = sampled(mode="sync")
    assert set(columns(chunks)["default_policy"]["agent_id"].tolist()) == {"a"}
    assert sequences(chunks, max_seq_len=4) and aligned(chunks)


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("columns", [None, []])
def test_they_are_written(columns, tmp_path):
    options = {"output": tmp_path, "output_config": {"columns": columns}}
    with make_runner(Newcomers, mode="sync", **OPTIONS, **options) as runner:
        chunks = [chunk for _ in range(3) for chunk in runner.sample(num_timesteps=8)]
    read = [chunk for some in ParquetReader(tmp_path).iter_episodes() for chunk in some]
    if columns is None:
        assert_same_episodes(read, chunks)
    assert len(read) == len(chunks) > 4


@pytest.mark.slow
def test_they_come_out_of_another_process():
    config = fastmarl.EnvRunnerConfig(
        env=Newcomers, restart_failed_sub_environments=True, rollout_fragment_length=6, seed=1
    )
    with BackgroundSampler(config, processes=1, start_method="fork") as sampler:
        for _ in range(2):
            assert len(sampler.next()["default_policy"]["rewards"]) == 6
