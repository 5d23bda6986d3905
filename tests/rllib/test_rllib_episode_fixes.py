"""Our episodes are RLlib's where RLlib is right, and right where it is not. Numbers are as in docs/differences.md."""

import copy
import pickle
import random
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray import cloudpickle
from ray.rllib.connectors.common import AddStatesFromEpisodesToBatch
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.utils.error import MultiAgentEnvError
from ray.rllib.utils.minibatch_utils import ShardEpisodesIterator
from ray.rllib.utils.replay_buffers.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer
from rllib.differential.compare import Comparison
from support.forked import with_new_modules
from support.random_cases import number_of_cases

from fastmarl.errors import ConfigError
from fastmarl.rllib import PPOTorchLearner
from fastmarl.rllib import runner as runner_module
from fastmarl.rllib.episodes import EPISODE_FIXES, MultiAgentEpisode, episode_class
from fastmarl.rllib.episodes import episode as episode_module
from fastmarl.rllib.fixes import FIXES, parse_fixes
from fastmarl.rllib.runner import MultiAgentEnvRunner, variant

AGENTS = ("ann", 1, "cy")
COLUMNS = ("observations", "infos", "actions", "rewards", "extra_model_outputs")
ONGOING = {"__all__": False}
SEEDS = st.integers(0, 2**32)
ALL_FIXES = episode_class(parse_fixes("all"))


def module_of(agent, episode, **kwargs):
    return "p0"


def observation(agent, t):
    return np.array([AGENTS.index(agent), t], np.float32)


def begin(cls=MultiAgentEpisode, agents=("ann", 1), infos=None):
    episode = cls(id_="e", agent_to_module_mapping_fn=module_of)
    episode.add_env_reset(observations={agent: observation(agent, 0) for agent in agents}, infos=infos)
    return episode


def step(episode, observed, acting=None, rewards=None, extras=None, infos=None, **flags):
    """Add a step. By default all observed agents had acted, each gets the reward 1, and nothing ends."""
    t = episode.env_t + 1
    acting = observed if acting is None else acting
    episode.add_env_step(
        {agent: observation(agent, t) for agent in observed},
        dict.fromkeys(acting, t - 1),
        dict.fromkeys(observed, 1.0) if rewards is None else rewards,
        infos,
        terminateds=ONGOING | flags.get("terminateds", {}),
        truncateds=ONGOING | flags.get("truncateds", {}),
        extra_model_outputs={agent: {"x": 10.0 * (t - 1)} for agent in acting} if extras is None else extras,
    )
    return episode


def grow(episode, n, agents=("ann", 1), **kwargs):
    for _ in range(n):
        step(episode, agents, **kwargs)
    return episode


def times(episode, agent):
    """The agent's entries from the chunk's begin on."""
    buffer = episode.env_t_to_agent_t[agent]
    return buffer.data[buffer.lookback :]


def prune(episode):
    """Remove agents without steps, as runners do."""
    for agent, part in list(episode.agent_episodes.items()):
        if not len(part):
            del episode.agent_episodes[agent]
    return episode


# Random histories.


class Story:
    """A random history of observations, rewards, late agents and ends. Actions follow observations."""

    def __init__(self, seed, *, skip=0.5, late=True, done=True, unobserved=False, length=12):
        rng = random.Random(seed)
        self.skip, self.rng, self.length = skip, rng, length
        self.joins = {agent: rng.choice([0, 0, 2, 5]) if late and agent != "ann" else 0 for agent in AGENTS}
        self.ends = {a: rng.randint(6, length) if done and a != "ann" and rng.random() < 0.5 else 99 for a in AGENTS}
        self.unobserved = unobserved
        self.steps = [self._reset(), *(self._step(t) for t in range(1, length + 1))]
        self.cuts = [t for t in range(1, length) if rng.random() < 0.4]

    def _reset(self):
        self.to_act = [agent for agent in AGENTS if not self.joins[agent]]
        self.alive = set(self.to_act)
        return list(self.to_act)

    def _step(self, t):
        rng, acting, observed, rewards, ended = self.rng, self.to_act, [], {}, {}
        for agent in AGENTS:
            if self.ends[agent] < t or t < self.joins[agent]:
                continue
            if agent not in self.alive:
                if t < self.ends[agent]:
                    self.alive.add(agent)
                    observed.append(agent)
                continue
            ended |= {agent: True} if t == self.ends[agent] else {}
            if rng.random() >= self.skip or (agent in ended and not self.unobserved):
                observed.append(agent)
                rewards[agent] = t + 0.5
            elif rng.random() < 0.5:
                rewards[agent] = t + 0.25
        self.to_act = [agent for agent in observed if agent not in ended]
        return observed, acting, rewards, ended

    def play(self, cls, *, lookback=None):
        """The chunks of this history; with a lookback, it is cut here and there."""
        episode, chunks = begin(cls, self.steps[0], {agent: {"t": 0} for agent in self.steps[0]}), []
        for t, (observed, acting, rewards, ended) in enumerate(self.steps[1:], 1):
            infos = {agent: {"t": t} for agent in observed}
            step(episode, observed, acting, rewards, infos=infos, terminateds=ended)
            if lookback is not None and t in self.cuts:
                chunks.append(episode)
                episode = episode.cut(lookback)
        return [*chunks, episode]


def transitions(chunks):
    """Agent -> its transitions as (observation, action, reward, extra, next observation), and how it ended."""
    found = {}
    for chunk in chunks:
        for agent, part in chunk.agent_episodes.items():
            steps = found.setdefault(agent, [])
            obs, extras = part.get_observations(), part.extra_model_outputs
            for i in range(len(part)):
                extra = float(extras["x"].get(i)) if extras else None
                action, reward = int(part.get_actions(i)), float(part.get_rewards(i))
                steps.append((obs[i].tolist(), action, reward, extra, obs[i + 1].tolist()))
            if part.is_done and len(part):
                steps.append((part.is_terminated, part.is_truncated))
    return {agent: steps for agent, steps in found.items() if steps}


def assert_equal(want, got):
    assert list(Comparison(most_asked=0)(want, got, "")) == []


@given(SEEDS, st.integers(1, 3))
@settings(max_examples=number_of_cases(50))
def test_equal_to_rllib_in_every_slot(seed, lookback):
    story = Story(seed)
    want, got = (story.play(cls, lookback=lookback) for cls in (RLlibEpisode, MultiAgentEpisode))
    assert [list(chunk.agent_episodes) for chunk in want] == [list(chunk.agent_episodes) for chunk in got]
    assert_equal(*([prune(chunk) for chunk in chunks] for chunks in (want, got)))
    assert_equal(*([chunk.to_numpy() for chunk in chunks] for chunks in (want, got)))


@given(SEEDS, st.integers(0, 3), st.booleans())
@settings(max_examples=number_of_cases(50))
def test_cuts_lose_nothing(seed, lookback, unobserved):
    story = Story(seed, unobserved=unobserved)
    assert transitions(story.play(MultiAgentEpisode, lookback=lookback)) == transitions(story.play(RLlibEpisode))


@given(SEEDS, st.booleans(), st.booleans())
@settings(max_examples=number_of_cases(50))
def test_joined_chunks_equal_the_undivided_episode(seed, as_arrays, pruned):
    story = Story(seed)
    chunks, [whole] = story.play(MultiAgentEpisode, lookback=1), story.play(MultiAgentEpisode)
    for chunk in chunks:
        if pruned:
            prune(chunk)
        if as_arrays:
            chunk.to_numpy()
    first, *others = chunks
    for chunk in others:
        first.concat_episode(chunk)
    prune(first), prune(whole)
    assert transitions([first]) == transitions([whole])
    for agent in whole.agent_episodes:
        assert times(first, agent) == times(whole, agent)
    assert first._hanging_actions_end.keys() == whole._hanging_actions_end.keys()
    assert first.get_return(True) == whole.get_return(True)
    if not as_arrays:
        want, got = (episode.get_rewards(return_list=True) for episode in (whole, first))
        assert got == want


@given(
    SEEDS,
    st.sampled_from(COLUMNS),
    st.none() | st.integers(-5, 5) | st.builds(slice, st.integers(-5, 5)),
    st.booleans(),
)
@example(75, "extra_model_outputs", None, False)
@settings(max_examples=number_of_cases(80))
def test_getters_equal_rllibs_on_first_chunks(seed, what, indices, as_list):
    story = Story(seed)
    as_list = as_list and not isinstance(indices, int)
    if what == "extra_model_outputs" and not as_list:
        asked = {"key": "x", "indices": indices}
    else:
        asked = {"indices": indices, "return_list": as_list}
    [theirs], [ours] = (story.play(cls) for cls in (RLlibEpisode, MultiAgentEpisode))
    got = getattr(ours, f"get_{what}")(**asked)
    try:
        want = getattr(theirs, f"get_{what}")(**asked)
    except KeyError:  # RLlib finds no such column of an agent whose first step is under way
        assert "key" in asked
        assert got.keys() <= {agent for agent, part in ours.agent_episodes.items() if len(part)}
        return
    assert_equal(want, got)


@given(SEEDS, st.integers(1, 3), st.sampled_from([frozenset(), frozenset(("14",))]))
@settings(max_examples=number_of_cases(50))
def test_57_getters_of_later_chunks_find_the_right_steps(seed, lookback, fixes):
    story = Story(seed)
    chunks = story.play(episode_class(fixes), lookback=lookback)
    [whole] = story.play(RLlibEpisode)
    for what in ("observations", "infos"):
        want = getattr(whole, f"get_{what}")(return_list=True)
        got = [getattr(chunk, f"get_{what}")(return_list=True) for chunk in chunks]
        for chunk, answer in zip(chunks, got, strict=True):
            gone = [agent for agent in AGENTS if story.ends[agent] <= chunk.env_t_started]
            expected = want[chunk.env_t_started : chunk.env_t + 1]
            expected = [{agent: value for agent, value in one.items() if agent not in gone} for one in expected]
            assert [set(one) for one in answer] == [set(one) for one in expected]
            assert repr([dict(sorted(one.items(), key=str)) for one in answer]) == repr(
                [dict(sorted(one.items(), key=str)) for one in expected]
            )
    for chunk in chunks:
        for agent, actions in chunk.get_actions().items():
            acted = [t for t in range(chunk.env_t_started, chunk.env_t) if agent in story.steps[t + 1][1]]
            assert actions == acted
        if outputs := chunk.get_extra_model_outputs():
            assert outputs == {agent: {"x": x} for agent, x in chunk.get_extra_model_outputs("x").items()}


@given(SEEDS, st.integers(0, 2), st.booleans())
@settings(max_examples=number_of_cases(50))
def test_slices_side_by_side_hold_all_transitions_once(seed, lookback, as_arrays):
    story = Story(seed)
    chunk = prune(story.play(MultiAgentEpisode, lookback=lookback)[-1])
    if as_arrays:
        chunk.to_numpy()
    bounds = [0, *sorted(random.Random(seed).sample(range(len(chunk) + 1), min(2, len(chunk)))), len(chunk)]
    pieces = [chunk[i:j] for i, j in pairwise(bounds)]
    assert transitions(pieces) == transitions([chunk])
    assert sum(len(piece) for piece in pieces) == len(chunk)
    for piece in pieces:
        piece.validate()
        for agent, values in piece.get_observations(env_steps=False).items():
            assert len(values) == len(piece.agent_episodes[agent]) + 1


@given(SEEDS, st.integers(0, 4), st.integers(0, 8), st.integers(0, 3))
def test_slices_equal_rllibs_where_all_act_in_all_steps(seed, start, length, lookback):
    story = Story(seed, skip=0, late=False, done=False)
    pieces = []
    for cls in (RLlibEpisode, MultiAgentEpisode):
        [episode] = story.play(cls)
        pieces.append(episode.slice(slice(start, start + length), len_lookback_buffer=lookback))
    theirs, ours = pieces
    for name in ("env_t", "env_t_started", "agent_t_started", "_len_lookback_buffers", "is_terminated", "agent_ids"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for agent in theirs.agent_ids:
        assert times(ours, agent) == times(theirs, agent)
        for what in ("observations", "actions", "rewards"):
            assert_equal(getattr(theirs.agent_episodes[agent], what), getattr(ours.agent_episodes[agent], what))


@given(SEEDS, st.integers(0, 2))
@settings(max_examples=number_of_cases(40))
def test_state_pickle_and_copy(seed, lookback):
    for chunk in Story(seed).play(MultiAgentEpisode, lookback=lookback):
        for copied in (
            MultiAgentEpisode.from_state(chunk.get_state()),
            pickle.loads(pickle.dumps(chunk)),
            copy.deepcopy(chunk),
            RLlibEpisode.from_state(chunk.get_state()),  # as RLlib's buffers do it
        ):
            assert transitions([copied]) == transitions([chunk])
            assert {agent: times(copied, agent) for agent in AGENTS} == {agent: times(chunk, agent) for agent in AGENTS}
            assert copied._hanging_actions_end == chunk._hanging_actions_end
            assert type(copied) in (MultiAgentEpisode, RLlibEpisode)


class Wild:
    """A random history of all that RLlib does not expect; the two sums are those of data that must not be lost.

    Actions are dropped, dead agents get rewards, agents end unobserved, random and other outputs alternate.
    """

    def __init__(self, seed, cls):
        self.rng = rng = random.Random(seed)
        self.lookback = rng.choice([0, 1, 1, 2, 3])
        self.alive = {"ann"} | {agent for agent in AGENTS if rng.random() < 0.6}
        self.new, self.dead = set(AGENTS) - self.alive, set()
        self.to_act, self.waiting, self.mode = set(self.alive), set(), "m"
        self.chunks = [begin(cls, [agent for agent in AGENTS if agent in self.alive])]
        for _ in range(rng.randint(6, 20)):
            self.step()
            if self.chunks[-1].is_done:
                break
            if rng.random() < 0.3:
                self.chunks.append(self.chunks[-1].cut(self.lookback))
                self.mode = rng.choice("mmri")

    def step(self):
        rng, episode = self.rng, self.chunks[-1]
        acting = [agent for agent in AGENTS if agent in self.to_act and rng.random() < 0.95]
        idle = self.to_act - set(acting)
        self.waiting |= set(acting)
        flags = {"terminateds": {}, "truncateds": {}}
        observed = [agent for agent in AGENTS if agent in self.alive and rng.random() < 0.6]
        for agent in [agent for agent in AGENTS if agent in self.waiting | idle and rng.random() < 0.06]:
            rng.choice([*flags.values()])[agent] = True
            if agent in idle and agent not in observed:
                observed.append(agent)  # an agent that neither acts nor is observed can't end
        joining = [agent for agent in AGENTS if agent in self.new and rng.random() < 0.2]
        if rng.random() < 0.05:
            rng.choice([*flags.values()])["__all__"] = True
        rewarded = [agent for agent in AGENTS if agent in observed or rng.random() < 0.3]
        rewards = {agent: float(rng.randint(1, 5)) for agent in rewarded if agent not in self.new}
        extras = {agent: outputs for agent in acting if (outputs := self.outputs(episode.env_t))}
        step(episode, [*observed, *joining], acting, rewards, extras, {agent: {"t": 1} for agent in observed}, **flags)
        self.dead |= flags["terminateds"].keys() | flags["truncateds"].keys()
        self.alive, self.new = (self.alive | set(joining)) - self.dead, self.new - set(joining)
        self.to_act = {*observed, *joining} - self.dead
        self.waiting -= set(observed) | self.dead

    def outputs(self, t):
        if self.mode == "r":
            return {}
        logp = np.float32(-t) if self.mode == "m" else np.full(2, -t / 2, np.float32)
        return {"action_logp": logp, "n": t, "state_out": {"h": np.full(3, t, np.float32)}}


@given(SEEDS, st.booleans())
@example(293467, False)  # joins a continued chunk, and ends unobserved
@settings(max_examples=number_of_cases(80))
def test_wild_histories(seed, fixed):
    history = Wild(seed, ALL_FIXES if fixed else MultiAgentEpisode)
    chunks, rng = history.chunks, history.rng
    for chunk in chunks:
        for what in COLUMNS:
            get = getattr(chunk, f"get_{what}")
            get(), get(return_list=True), get(indices=slice(-2, None)), get(env_steps=False)
        MultiAgentEpisode.from_state(chunk.get_state())
    steps, total = sum(chunk.agent_steps() for chunk in chunks), sum(chunk.get_return() for chunk in chunks)
    for chunk in chunks:
        prune(chunk).to_numpy().validate()
        bounds = [0, *sorted(rng.sample(range(len(chunk) + 1), min(2, len(chunk)))), len(chunk)]
        pieces = [chunk[i:j] for i, j in pairwise(bounds)]
        assert sum(piece.agent_steps() for piece in pieces) == chunk.agent_steps()
        assert sum(piece.get_return() for piece in pieces) == chunk.get_return()
    buffer = MultiAgentEpisodeReplayBuffer(capacity=1000, batch_size_B=4)
    for chunk in chunks[rng.choice([0, 0, 1]) :]:
        buffer.add(chunk)
    if buffer.get_num_agent_timesteps():
        buffer.sample()
    first, *others = chunks
    for chunk in others:
        first.concat_episode(chunk)
    assert (first.agent_steps(), first.get_return()) == (steps, total)
    first.get_rewards(), first.get_observations(return_list=True), first.get_extra_model_outputs()


# Data that RLlib raises on or loses.


def mixed(modes, observed=lambda t: ("ann", 1)):
    """An episode whose steps are made by the module ("m") or at random ("r"), cut after each letter's 2 steps."""
    episode, chunks, acting = begin(agents=observed(0)), [], observed(0)
    for mode in modes:
        for _ in range(2):
            t = episode.env_t
            extras = {agent: {"x": np.float32(t), "n": 7} for agent in acting} if mode == "m" else {}
            step(episode, observed(t + 1), acting, dict.fromkeys(("ann", 1), 1.0), extras)
            acting = observed(t + 1)
        chunks.append(episode)
        episode = episode.cut(1)
    return [prune(chunk).to_numpy() for chunk in chunks]


@pytest.mark.parametrize("modes", ["mr", "rm", "mrm", "rmr", "mmrrmm"])
@pytest.mark.parametrize("turns", [False, True])
def test_02_random_actions_between_those_of_a_module(modes, turns):
    chunks = mixed(modes, (lambda t: ("ann", 1)[t % 2 : t % 2 + 1]) if turns else (lambda t: ("ann", 1)))
    for chunk in chunks:
        for part in chunk.agent_episodes.values():
            for i, t in enumerate(part.get_actions().tolist()):
                if modes[t // 2] == "m":
                    assert part.extra_model_outputs["x"].get(i) == t
                    assert part.extra_model_outputs["n"].get(i) == 7
                elif part.extra_model_outputs:
                    assert np.isnan(part.extra_model_outputs["x"].get(i))
                    assert part.extra_model_outputs["n"].get(i) == 0
    first, *others = chunks
    for chunk in others:
        first.concat_episode(chunk)
    assert Counter(dict.fromkeys(AGENTS[:2], 0) | {a: len(p) for a, p in first.agent_episodes.items()}).total() == sum(
        chunk.agent_steps() for chunk in chunks[1:]
    ) + first.agent_steps() - sum(chunk.agent_steps() for chunk in others)


def test_02_a_recurrent_state_goes_on_through_random_steps():
    episode = begin(agents=("ann",))
    step(episode, ["ann"], extras={"ann": {"state_out": {"h": np.ones(2, np.float32)}}})
    step(episode, ["ann"], extras={})
    np.testing.assert_array_equal(episode.agent_episodes["ann"].get_extra_model_outputs("state_out", -1)["h"], [1, 1])


@pytest.mark.parametrize("lookback", [0, 1])
@pytest.mark.parametrize("waits", [False, True])
def test_08_an_agent_that_ends_unobserved_after_a_cut_keeps_its_step(waits, lookback):
    episode = grow(begin(), 2)
    if waits:
        step(episode, ["ann"], ["ann", 1], {"ann": 1.0, 1: 5.0})
    episode = episode.cut(lookback)
    acting = ["ann"] if waits else ["ann", 1]
    step(episode, ["ann"], acting, {"ann": 1.0, 1: 100.0}, terminateds={1: True})
    part = episode.agent_episodes[1]
    assert (len(part), part.get_return(), part.is_terminated) == (1, 105.0 if waits else 100.0, True)
    assert_equal(part.get_observations(0), part.get_observations(1))


def test_11_arrays_are_made_once(monkeypatch):
    episode = grow(begin(), 2).to_numpy()
    monkeypatch.setattr(RLlibEpisode, "to_numpy", lambda self: pytest.fail("made again"))
    assert episode.to_numpy() is episode


def test_12_truncated_episodes_say_so():
    episode = step(begin(), ["ann", 1], truncateds={"__all__": True})
    assert episode.get_truncateds() == {"ann": True, 1: True, "__all__": True}


@pytest.mark.parametrize("lookback", [0, 1])
def test_13_slices_keep_how_agents_ended(lookback):
    episode = grow(begin(), 3).cut(lookback)
    grow(episode, 2)
    step(episode, ["ann", 1], terminateds={1: True})
    step(episode, ["ann"], terminateds={"__all__": True})
    assert episode[:].get_terminateds() == {"ann": True, 1: True, "__all__": True}
    assert episode[:3].get_terminateds() == {"ann": False, 1: True, "__all__": False}
    assert episode[3:].get_terminateds() == {"ann": True, "__all__": True}


def late_joiner(chunk_lengths, joins, cls=MultiAgentEpisode, lookback=1):
    """Agent 1 is observed from env step `joins` on."""
    episode, chunks = begin(cls, ("ann",)), []
    for n in chunk_lengths:
        for _ in range(n):
            t = episode.env_t + 1
            step(episode, ("ann", 1)[: 1 + (t >= joins)], ("ann", 1)[: 1 + (t > joins)])
        chunks.append(episode)
        episode = episode.cut(lookback)
    return [prune(chunk).to_numpy() for chunk in chunks]


@pytest.mark.parametrize("joins", range(1, 12))
def test_15_and_48_late_joiners_reach_replay_buffers(joins):
    buffer = MultiAgentEpisodeReplayBuffer(capacity=100)
    for chunk in late_joiner((4, 4, 4), joins):
        buffer.add(chunk)
    [episode] = buffer.episodes
    assert {a: len(part) for a, part in episode.agent_episodes.items() if len(part)} == Counter(ann=12) + Counter(
        {1: 12 - joins}
    )
    for t in range(13):
        assert {a: obs.tolist() for a, obs in episode.get_observations(t).items() if a == 1} == (
            {1: observation(1, t).tolist()} if t >= joins and joins < 12 else {}
        )


def test_15_agents_of_later_chunks_can_be_evicted_from_replay_buffers():
    buffer = MultiAgentEpisodeReplayBuffer(capacity=10)
    for chunk in late_joiner((4, 4), 5):
        buffer.add(chunk)
    other = grow(MultiAgentEpisode(id_="other", agent_to_module_mapping_fn=module_of), 0)
    other.add_env_reset(observations={"ann": observation("ann", 0)})
    buffer.add(grow(other, 8, ["ann"]).to_numpy())
    assert [episode.id_ for episode in buffer.episodes] == ["other"]


def test_16_no_lookback_for_agents_in_turns():
    episode, chunks = begin(agents=("ann",)), []
    for _ in range(6):
        for _ in range(3):
            t = episode.env_t
            observed, acting = (("ann", 1)[(t + 1) % 2],), (("ann", 1)[t % 2],)
            step(episode, observed, acting if t else ("ann",), dict.fromkeys(observed, 1.0))
        chunks.append(episode)
        episode = episode.cut(0)
    assert sum(chunk.agent_steps() for chunk in chunks) == 17


def test_17_replay_buffers_sample_from_later_chunks():
    chunks, episode = [], begin()
    for _ in range(3):
        chunks.append(grow(episode, 10))
        episode = episode.cut(1)
    buffer = MultiAgentEpisodeReplayBuffer(capacity=1000, batch_size_B=64)
    for chunk in chunks[1:]:  # the first never reached this buffer
        buffer.add(prune(chunk).to_numpy())
    assert len(buffer.sample()) == 64
    assert [step.agent_t_started for step in buffer.episodes] == [{"ann": 10, 1: 10}]
    stored = pickle.loads(pickle.dumps(buffer.episodes[0])).env_t_to_agent_t[1].data
    assert stored == list(range(9, 31))
    assert (stored.index(0), stored.index(19)) == (1, 20)


def test_30_an_episode_without_agents():
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=module_of)
    assert not episode.is_numpy
    episode.to_numpy().print()


def test_31_infos_are_the_episodes_own():
    episode, handle = begin(infos={"ann": {"t": 0}}), (i for i in ())
    info = {"t": [0], "handle": handle}
    for t in range(1, 4):
        info["t"][0] = t
        step(episode, ["ann", 1], infos={"ann": info})
    infos = episode.agent_episodes["ann"].get_infos()
    assert infos == [{"t": 0}, *({"t": [t], "handle": handle} for t in range(1, 4))]


@pytest.mark.parametrize("cut", [False, True])
def test_32_a_time_limit_finds_an_agent_waiting(cut):
    episode = step(begin(), ["ann"], ["ann", 1], {"ann": 1.0})
    if cut:
        episode = episode.cut(1)
    step(episode, ["ann"], rewards={"ann": 1.0, 1: 3.0}, truncateds={"__all__": True})
    part = episode.agent_episodes[1]
    assert (len(part), part.get_return(), part.is_truncated, part.is_terminated) == (1, 3.0, True, False)
    assert_equal(part.get_observations(0), part.get_observations(1))
    episode.to_numpy().validate()


def test_32_a_time_limit_right_after_an_action():
    episode = step(begin(), ["ann"], ["ann", 1], {"ann": 1.0}, truncateds={1: True})
    assert episode.get_truncateds() == {"ann": False, 1: True, "__all__": False}
    assert episode.agent_episodes[1].get_extra_model_outputs("x") == [0.0]
    assert len(grow(episode, 2, ["ann"]).agent_episodes[1]) == 1


def test_33_rewards_of_the_dead():
    episode = step(begin(), ["ann", 1], terminateds={1: True})
    step(episode, ["ann"], rewards={"ann": 1.0, 1: 0.0}, terminateds={1: True}, infos={1: {"late": True}})
    step(episode, ["ann"], rewards={"ann": 1.0, 1: 8.0})
    assert episode.agent_episodes[1].get_rewards() == [9.0]
    following = step(episode.cut(1), ["ann"], rewards={"ann": 1.0, 1: 8.0})
    assert prune(following).get_return() == 1.0
    with pytest.raises(MultiAgentEnvError, match="is_done"):
        step(episode, ["ann", 1], ["ann"])


def test_38_print_takes_ids_of_any_type(capsys):
    step(begin(), ["ann"], ["ann", 1]).print()
    assert capsys.readouterr().out.splitlines() == ["ts   0   1", "ann   x   x", "1     x"]
    RLlibEpisode.print(begin(agents=("ann",)))
    theirs = capsys.readouterr().out
    begin(agents=("ann",)).print()
    assert capsys.readouterr().out == theirs


@pytest.mark.parametrize("modes", ["ei", "ie", "eie", "iei"])
def test_39_exploration_on_and_off(modes):
    values = {"e": np.float32(-1.5), "i": np.zeros(2, np.float32)}
    episode, chunks = begin(agents=("ann",)), []
    for mode in modes:
        grow(episode, 2, ["ann"], extras={"ann": {"action_logp": values[mode]}})
        chunks.append(episode)
        episode = episode.cut(1)
    columns = [chunk.to_numpy().agent_episodes["ann"].get_extra_model_outputs("action_logp") for chunk in chunks]
    first, *others = chunks
    for chunk in others:
        first.concat_episode(chunk)
    whole = first.agent_episodes["ann"].get_extra_model_outputs("action_logp")
    assert whole.dtype == np.float32
    assert whole.tolist() == [-1.5 if mode == "e" else 0.0 for mode in modes for _ in (0, 1)]
    assert all(column.shape == (2,) for column in columns[1:])


def test_44_the_newer_of_two_observations_counts():
    episode = step(begin(agents=("ann", 1)), ["ann", 1])
    for _ in range(2):
        step(episode, ["ann", 1], ["ann"])
    step(episode, ["ann", 1])
    part = episode.agent_episodes[1]
    assert [obs[1] for obs in part.get_observations()] == [0, 3, 4]
    assert part.get_rewards() == [3.0, 1.0]
    assert times(episode, 1) == [0, "S", "S", 1, 2]
    assert episode.get_agents_to_act() == {"ann", 1}


def test_44_an_agent_may_end_with_it():
    episode = step(step(begin(), ["ann", 1]), ["ann", 1], ["ann"], terminateds={1: True})
    assert episode.get_terminateds() == {"ann": False, 1: True, "__all__": False}
    assert len(episode.agent_episodes[1]) == 1
    assert episode.get_agents_to_act() == {"ann"}


def test_44_before_an_agent_has_ever_acted():
    episode = step(begin(), ["ann", 1], ["ann"])
    assert episode.get_return(include_hanging_rewards=True) == 2.0
    assert [obs[1] for obs in episode.agent_episodes[1].get_observations()] == [1]


@pytest.mark.parametrize("lookback", [0, 1, 3])
@pytest.mark.parametrize("seen_again", [5, 6, 7])
def test_44_observed_again_in_another_chunk(seen_again, lookback):
    episode, chunks = begin(), []
    for t in range(1, 10):
        observed = ("ann", 1) if t <= 2 or t >= seen_again else ("ann",)
        step(episode, observed, ("ann",) if 2 < t <= seen_again else ("ann", 1))
        if t in (2, 4, 6):
            chunks.append(episode)
            episode = episode.cut(lookback)
    first, *others = [prune(chunk) for chunk in (*chunks, episode)]
    for chunk in others:
        first.concat_episode(chunk)
    assert [obs[1] for obs in first.agent_episodes[1].get_observations()] == [0, 1, *range(seen_again, 10)]
    assert len(set(first.agent_episode_ids.values())) == 2


@pytest.mark.parametrize("lookback", [0, 1])
def test_47_learners_find_the_state_before_a_chunk(lookback):
    episode, chunks = begin(agents=("ann",)), []
    for _ in range(4):
        for _ in range(5):
            t = episode.env_t
            state = {"state_out": {"h": np.full(2, t, np.float32)}}
            observed, acting = (("ann", 1)[(t + 1) % 2],), (("ann", 1)[t % 2],)
            step(episode, observed, acting, dict.fromkeys(observed, 1.0), {acting[0]: state})
        chunks.append(episode)
        episode = episode.cut(lookback)
    module = SimpleNamespace(
        is_stateful=lambda: True,
        model_config={"max_seq_len": 1},
        get_initial_state=lambda: {"h": np.full(2, -1, np.float32)},
    )
    modules = type("Modules", (dict,), {"is_stateful": lambda self: True})(p0=module)
    connector = AddStatesFromEpisodesToBatch(as_learner_connector=True)
    found = {"ann": [], 1: []}
    for chunk in chunks:
        batch = connector(rl_module=modules, batch={}, episodes=[prune(chunk).to_numpy()], shared_data={})
        for (_, agent, _), states in batch["state_in"].items():
            found[agent] += [float(state[0]) for state in np.concatenate([np.atleast_2d(s["h"]) for s in states])]
    assert found == {"ann": [-1.0, *range(0, 18, 2)], 1: [-1.0, *range(1, 17, 2)]}


def test_53_all_extra_outputs_at_once():
    episode = grow(begin(), 2)
    assert episode.get_extra_model_outputs() == {agent: {"x": [0.0, 10.0]} for agent in ("ann", 1)}
    assert episode.get_extra_model_outputs(indices=-1) == {agent: {"x": 10.0} for agent in ("ann", 1)}
    assert episode.get_extra_model_outputs(env_steps=False) == {agent: {"x": [0.0, 10.0]} for agent in ("ann", 1)}
    assert episode.get_extra_model_outputs("x", [0], agent_ids=1, env_steps=False) == {1: [0.0]}
    with pytest.raises(KeyError):
        episode.get_extra_model_outputs("y")


def test_53_agents_are_in_their_order_whatever_outputs_they_have():
    extras = {"cy": {"x": 1.0, "y": 2.0}, "ann": {"y": 3.0}, 1: {"x": 4.0}}
    episode = step(begin(agents=("cy", "ann", 1)), AGENTS, extras=extras)
    assert [*episode.get_extra_model_outputs()] == ["cy", "ann", 1]


@pytest.mark.parametrize("lookback", [1, 3])
def test_54_an_agent_that_ended_with_a_chunk_is_no_trouble_in_the_next(lookback):
    episode = step(grow(begin(), 4), ["ann", 1], terminateds={1: True}).cut(lookback)
    grow(episode, 2, ["ann"])
    assert episode.get_rewards() == {"ann": [1.0, 1.0]}
    assert episode.get_actions(return_list=True) == [{"ann": 5}, {"ann": 6}]
    assert episode.get_agents_that_stepped() == {"ann"}
    step(episode, ["ann"], terminateds={"ann": True, "__all__": True})
    assert prune(episode).to_numpy().get_terminateds() == {"ann": True, "__all__": True}


def test_55_episodes_with_waiting_agents_are_sharded():
    episode = begin()
    for n in (7, 20):
        for _ in range(n):
            alone = episode.env_t % 2 == 0
            step(episode, ["ann"] if alone else ["ann", 1], ["ann", 1] if alone else ["ann"])
        chunk, episode = prune(episode).to_numpy(), episode.cut(1)
    shards = list(ShardEpisodesIterator([chunk], 2))
    assert [sum(len(piece) for piece in shard) for shard in shards] == [10, 10]
    assert sum(piece.agent_steps() for shard in shards for piece in shard) == chunk.agent_steps()


def test_56_a_freshly_cut_episode_has_a_state():
    for cls in (MultiAgentEpisode, RLlibEpisode):
        again = cls.from_state(grow(begin(), 3).cut(1).get_state())
        assert grow(again, 2).agent_episodes["ann"].get_extra_model_outputs("x") == [30.0, 40.0]
    assert MultiAgentEpisode.from_state(grow(begin(), 3).cut(1).get_state())._len_lookback_buffers == 1


# Corrections on request.


def test_01_a_time_limit_does_not_terminate():
    for flags in ({"ann": True, 1: True}, {"ann": True, 1: True, "__all__": True}, {"__all__": True}):
        episode = step(begin(ALL_FIXES), ["ann", 1], truncateds=flags)
        assert episode.get_terminateds() == {"ann": False, 1: False, "__all__": False}
        assert episode.get_truncateds() == {"ann": True, 1: True, "__all__": True}
        assert step(begin(), ["ann", 1], truncateds=flags).is_terminated == ("ann" in flags)


def test_45_a_survivor_that_is_truncated_is_not_terminated():
    episode = step(begin(ALL_FIXES), ["ann", 1], terminateds={1: True})
    step(episode, ["ann"], truncateds={"ann": True, "__all__": True})
    assert episode.get_terminateds() == {"ann": False, 1: True, "__all__": False}
    assert episode.get_truncateds() == {"ann": True, 1: False, "__all__": True}


def test_01_agents_that_really_terminate_are_terminated():
    episode = step(begin(ALL_FIXES), ["ann", 1], terminateds={1: True}, truncateds={"__all__": True})
    assert episode.get_terminateds() == {"ann": False, 1: True, "__all__": False}
    episode = step(begin(ALL_FIXES), ["ann", 1], terminateds={"ann": True, 1: True})
    assert episode.get_terminateds() == {"ann": True, 1: True, "__all__": True}
    assert episode.get_truncateds() == {"ann": False, 1: False, "__all__": False}


@pytest.mark.parametrize("lookback", [0, 1, 6])
def test_14_late_joiners_are_found_at_their_own_steps(lookback):
    chunk = late_joiner((4, 4), 6, ALL_FIXES, lookback)[1]
    assert [t + 4 for t in range(5) if 1 in chunk.get_observations(t)] == [6, 7, 8]
    as_rllib = late_joiner((4, 4), 6, MultiAgentEpisode, lookback)[1]
    assert times(as_rllib, 1) == times(late_joiner((4, 4), 6, RLlibEpisode, lookback)[1], 1) != times(chunk, 1)


def test_21_common_infos_are_kept():
    episode = begin(ALL_FIXES, infos={"__common__": {"score": 0}})
    for t in (1, 2):
        step(episode, ["ann", 1], infos={"__common__": {"score": t}})
    after = episode.cut(1)
    step(after, ["ann", 1], infos={"__common__": {"score": 3}})
    assert episode.custom_data["__common__"] == {0: {"score": 0}, 1: {"score": 1}, 2: {"score": 2}}
    assert after.custom_data["__common__"] == {3: {"score": 3}}
    episode.concat_episode(after)
    assert list(episode.custom_data["__common__"]) == [0, 1, 2, 3]
    assert "__common__" not in step(begin(), ["ann"], infos={"__common__": {}}).custom_data


def test_43_the_clock_of_a_chunk_can_be_resumed():
    after = grow(begin(), 2).cut(1)
    after.resume_clock()
    started = after._start_time
    grow(after, 1)
    assert after._start_time == started < after._last_step_time
    after.resume_clock()
    assert after._start_time == started


# Options and classes.


def test_fixes_are_named_by_number_or_alias():
    assert parse_fixes("all") == set(FIXES)
    assert parse_fixes(()) == frozenset()
    assert parse_fixes(["time_maps", "04"]) == {"14", "04"}
    assert parse_fixes(["45"]) == parse_fixes(["true_flags"]) == {"01", "45"}
    assert len(set(FIXES.values())) == len(FIXES)
    assert FIXES.keys() >= EPISODE_FIXES


@pytest.mark.parametrize("fixes", ["01", ["02"], ["everything"], [1]])
def test_unknown_fixes_are_refused(fixes):
    with pytest.raises(ConfigError, match="fixes"):
        parse_fixes(fixes)


def test_classes_are_the_same_for_the_same_options():
    assert episode_class(frozenset(("04",))) is MultiAgentEpisode
    assert episode_class(frozenset(("14", "04"))) is episode_class(frozenset(("14",)))
    one = variant(MultiAgentEnvRunner, frozenset(("14", "21")), "fast")
    assert variant(MultiAgentEnvRunner, frozenset(("21", "14")), "fast") is one
    assert variant(one, frozenset(), "exact") is variant(MultiAgentEnvRunner, frozenset(), "exact") is not one
    assert (one.fixes, one.sampler) == ({"14", "21"}, "fast")
    assert one.episode_class.fixes == {"14", "21"}
    with pytest.raises(ConfigError, match="sampler"):
        variant(MultiAgentEnvRunner, frozenset(), "slow")


@pytest.mark.parametrize(
    "name", ["MultiAgentEpisode__99", "MultiAgentEpisode__none", "MultiAgentEnvRunner__slow__01", "x"]
)
def test_only_known_classes_can_be_imported(name):
    for module in (episode_module, runner_module):
        with pytest.raises(AttributeError, match=name):
            getattr(module, name)


class OwnRunner(MultiAgentEnvRunner):
    pass


@pytest.mark.parametrize("dumps", [pytest.param(pickle.dumps, marks=pytest.mark.exhaustive), cloudpickle.dumps])
def test_classes_with_options_pickle_by_import(dumps):
    runner = variant(MultiAgentEnvRunner, parse_fixes("all"), "fast")
    episode = grow(begin(ALL_FIXES), 2)
    assert pickle.loads(dumps(runner)) is runner
    assert type(pickle.loads(dumps(episode))) is ALL_FIXES
    sent = dumps((runner, ALL_FIXES, PPOTorchLearner.options(update="fast")))
    answer = with_new_modules("fastmarl.rllib", names_of_received, sent)
    assert answer == [runner.__name__, ALL_FIXES.__name__, "fast"]


def names_of_received(sent):
    *classes, learner = pickle.loads(sent)
    assert learner is not PPOTorchLearner.options(update="fast"), "of this module, which was imported before"
    return [*(each.__name__ for each in classes), learner.update_mode]


def test_runners_of_ones_own_are_sent_by_value():
    cls = variant(OwnRunner, frozenset(("14",)), "exact")
    assert variant(OwnRunner, frozenset(("14",)), "exact") is cls
    assert variant(variant(cls, frozenset(), "fast"), frozenset(("14",)), "exact") is cls
    sent = cloudpickle.loads(cloudpickle.dumps(cls))
    assert issubclass(sent, OwnRunner)
    assert (sent.fixes, sent.sampler) == ({"14"}, "exact")


def test_61_agents_that_do_not_wait_have_no_hanging_rewards():
    episode = step(grow(begin(), 2), ["ann", 1], terminateds={1: True})
    step(episode, ["ann"], ["ann"], {"ann": 1.0}, terminateds={1: False})
    assert episode.get_rewards(agent_ids=1, env_steps=False) == {1: [1.0, 1.0, 1.0]}
    assert episode.get_rewards(-1, agent_ids=1, env_steps=False) == {1: 1.0}


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("back", [1, 2])
def test_61_a_cut_of_arrays_looks_back_to_rewards_of_their_kind(kind, back):
    rewards = {"ann": kind(0.1), 1: kind(0.2)}
    first = step(begin(agents=("ann",)), ["ann", 1], ["ann"], rewards)
    episode = first.cut(1)  # knows a hanging reward of 0 of who joined with its first observation
    for _ in range(2):
        step(episode, ["ann", 1], rewards=rewards)
    after = episode.to_numpy().cut(back)
    for agent, part in after.agent_episodes.items():
        looked_back_to = np.asarray(part.rewards.data)
        assert looked_back_to.dtype == kind
        assert [*looked_back_to] == [rewards[agent]] * back


@pytest.mark.parametrize("lookback", [0, 1, 3])
def test_58_rewards_of_a_waiting_agent_count_once(lookback):
    episode = grow(begin(), 2)
    step(episode, ["ann"], ["ann", 1], {"ann": 1.0, 1: 2.0})
    after = episode.cut(lookback)
    assert (episode.get_return(), episode.get_return(True)) == (5.0, 7.0)
    assert (after.get_return(), after.get_return(True)) == (0, 2.0)
    step(after, ["ann", 1], ["ann"], {"ann": 1.0, 1: 3.0})
    assert (after.get_return(), after.get_return(True)) == (6.0, 6.0)


def test_58_pay_before_an_agent_joins_counts_in_joined_chunks():
    chunks, episode = [], begin(agents=("ann",))
    for agents in (["ann"], ["ann", 1], ["ann", 1]):
        step(episode, agents, ["ann"] if episode.env_t < 2 else agents, {"ann": 1.0, 1: 8.0})
        chunks.append(episode)
        episode = episode.cut(1)
    first, *others = chunks
    assert [chunk.get_return(True) for chunk in chunks] == [9.0, 9.0, 9.0]
    for chunk in others:
        first.concat_episode(chunk)
    assert (first.get_return(), first.get_return(True)) == (11.0, 27.0)


def test_options_of_a_subclass_keep_the_subclass():
    class Own(MultiAgentEnvRunner.options(sampler="fast")):
        """A user's class of a class with options."""

    chosen = Own.options(fixes={"01"})
    assert issubclass(chosen, Own)
    assert chosen.options(fixes={"01"}) is chosen
