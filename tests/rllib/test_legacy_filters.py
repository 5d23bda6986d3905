"""Observation filters of `fastmarl.legacy` have RLlib's statistics and results, to the last digit."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.evaluation import rollout_worker
from ray.rllib.utils import filter as of_rllib
from support.exhaustive import further
from support.legacy_api.faces import Ours, Theirs, all_to_p0, by_agent

import fastmarl
from fastmarl.errors import ConfigError
from fastmarl.legacy import ConcurrentMeanStdFilter, MeanStdFilter, RolloutWorkerConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib's and Gymnasium's own
Box = gym.spaces.Box
SPACES = {
    "float64": Box(0, 1e12, (2,), np.float64),
    "float32": Box(-1e6, 1e6, (2,), np.float32),
    "int32": Box(0, 10**9, (2,), np.int32),
    "uint8": Box(0, 255, (2,), np.uint8),
    "Dict": gym.spaces.Dict({"x": Box(0, 1e12, (2,), np.float64), "y": Box(0, 10**6, (1,), np.int32)}),
    "Tuple": gym.spaces.Tuple((Box(0, 1e12, (2,), np.float64), Box(-1, 1, (2, 2), np.float32))),
}
DTYPES = [np.float64, np.float32, np.int64, np.int32, np.uint8]


def _numbers(stat):
    """RLlib's statistics, as ours keep them."""
    return stat.n, stat.mean_array.ravel(), stat.sum_sq_diff_array.ravel(), stat.var.ravel(), stat.std.ravel()


def _assert_same(theirs, ours):
    for stat, [moments] in ((theirs.running_stats, ours.running_stats), (theirs.buffer, ours.buffer)):
        found = moments.n, moments.mean, moments._m2, moments.var, moments.std
        for expected, each in zip(_numbers(stat), found, strict=True):
            np.testing.assert_array_equal(each, expected, strict=True)


def _pair(kinds=(of_rllib.MeanStdFilter, MeanStdFilter), **options):
    theirs, ours = kinds
    return theirs((2,), **options), ours([fastmarl.RunningMeanStd(2)], [fastmarl.RunningMeanStd(2)], **options)


def _see(pair, rows, update=True):
    for row in rows:
        expected, found = (each(row, update=update) for each in pair)
        np.testing.assert_array_equal(found, expected, strict=True)
    _assert_same(*pair)


@given(
    dtype=st.sampled_from(DTYPES), n=st.integers(1, 9), seed=st.integers(0, 99), demean=st.booleans(),
    destd=st.booleans(), clip=st.sampled_from([None, 0.0, 1.0, 10.0]), offset=st.sampled_from([0.0, 1e3, 1.7e9, 1e15]),
)  # fmt: skip
def test_filters_normalise_as_rllibs(dtype, n, seed, demean, destd, clip, offset):
    rng = np.random.default_rng(seed)
    most = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else np.inf
    rows = np.minimum(rng.random((n, 2)) * 100 + min(offset, most / 2), most).astype(dtype)
    pair = _pair(demean=demean, destd=destd, clip=clip)
    if np.dtype(dtype).kind == "u" and demean:
        return  # negative results in unsigned integers are undefined
    _see(pair, rows)
    _see(pair, rows[:2], update=False)


@pytest.mark.parametrize("kinds", [
    (of_rllib.MeanStdFilter, MeanStdFilter),
    (of_rllib.ConcurrentMeanStdFilter, ConcurrentMeanStdFilter),
], ids=["one", "concurrent"])  # fmt: skip
def test_filters_exchange_their_counts(kinds):
    rng = np.random.default_rng(1)
    one, other, fresh = _pair(kinds), _pair(kinds), _pair(kinds)
    for pair, offset in ((one, 1e9), (other, 1.5e9)):
        _see(pair, rng.standard_normal((5, 2)) * 1e3 + offset)
        for each in pair:
            each.reset_buffer()
        _see(pair, rng.standard_normal((3, 2)) * 1e3 + offset)
    for with_buffer in (False, True):
        for each, another in zip(one, other, strict=True):
            each.apply_changes(another, with_buffer=with_buffer)
        _assert_same(*one)
    for each, another in zip(fresh, one, strict=True):
        each.apply_changes(another)  # into statistics without rows
    _assert_same(*fresh)
    for make in ("copy", "as_serializable"):
        made = [getattr(each, make)() for each in one]
        _assert_same(*made)
        assert made[0].is_concurrent == made[1].is_concurrent
    for each, another in zip(one, other, strict=True):
        each.sync(another)
    _assert_same(*one)
    _see(one, rng.standard_normal((3, 2)))


def _sampled(space, rng):
    if isinstance(space, gym.spaces.Dict):
        return {key: _sampled(each, rng) for key, each in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_sampled(each, rng) for each in space.spaces)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return (low + (high - low) * (0.3 + 0.01 * rng.random(space.shape))).astype(space.dtype)


def _env_of(space):
    class Numbers(MultiAgentEnv):
        """Two agents that see the same numbers in each run, whatever they do; episodes of five steps."""

        def __init__(self, config=None):
            super().__init__()
            self.agents = self.possible_agents = ["a", "b"]
            self.observation_spaces = dict.fromkeys("ab", space)
            self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(3))
            self.observation_space = gym.spaces.Dict(self.observation_spaces)
            self.action_space = gym.spaces.Dict(self.action_spaces)
            self.rng = np.random.default_rng(1)

        def seen(self):
            return {agent: _sampled(space, self.rng) for agent in "ab"}

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return self.seen(), {}

        def step(self, action_dict):
            self.t += 1
            return self.seen(), {"a": 1.0, "b": 1.0}, {"__all__": self.t == 5}, {"__all__": False}, {}

    return Numbers


def _flat(obs):
    parts = [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else obs if isinstance(obs, tuple) else [obs]
    return np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1)


def _of_boxes(moments, name):
    return np.concatenate([getattr(each, name) for each in moments])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "kind"),
    [
        *((space, "MeanStdFilter") for space in SPACES),
        ("Dict", "ConcurrentMeanStdFilter"),
        *further((space, "ConcurrentMeanStdFilter") for space in SPACES if space != "Dict"),
    ],
)
def test_workers_filter_as_rllibs(space, kind, monkeypatch):
    """Batches and statistics of two policies, of one, and of workers that have exchanged filters."""
    monkeypatch.setattr(rollout_worker, "_update_env_seed_if_necessary", lambda *args: None)  # which resets once more
    env = _env_of(SPACES[space])
    for mapping in (by_agent, all_to_p0):
        options = {"observation_filter": kind, "policy_mapping_fn": mapping}
        theirs, ours = Theirs(), Ours()
        workers = theirs.fresh({"env_creator": env}, **options), ours.fresh(env=env, **options)
        for _ in range(2):
            batches = [worker.sample() for worker in workers]
            filters = [worker.get_filters(flush_after=True) for worker in workers]
            for policy_id, expected in batches[0].policy_batches.items():
                for name in ("obs", "new_obs"):
                    found = _flat(batches[1][policy_id][name])
                    np.testing.assert_array_equal(found, expected[name], strict=True)
                of_theirs, of_ours = (each[policy_id] for each in filters)
                assert of_theirs.is_concurrent == of_ours.is_concurrent
                for stat, moments in ((of_theirs.running_stats, of_ours.rs), (of_theirs.buffer, of_ours.buffer)):
                    assert stat.n == moments[0].n
                    for of_rllibs, name in zip(_numbers(stat)[1:], ("mean", "_m2", "var", "std"), strict=True):
                        np.testing.assert_array_equal(_of_boxes(moments, name), of_rllibs, strict=True)
            for worker, each in zip(workers, filters, strict=True):
                for of_policy in each.values():
                    of_policy.apply_changes(of_policy)  # as if another worker had counted the same
                worker.sync_filters(each)
        theirs.close(), ours.close()


def test_filters_refuse_values_that_are_not_finite():
    class NotFinite(_env_of(SPACES["float64"])):
        def seen(self):
            return {"a": np.array([1.0, np.nan]), "b": np.ones(2)}

    ours = Ours()
    with pytest.raises(Exception, match="needs finite numbers"):
        ours.fresh(env=NotFinite, observation_filter="MeanStdFilter").sample()
    ours.close()
    with pytest.raises(ConfigError, match="ConcurrentMeanStdFilter"):
        RolloutWorkerConfig(env=NotFinite, observation_filter="Mean")
