"""Batches against plain loops over random worlds, whose agents join, wait, die and come again."""

import pickle
import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from support import batches as oracle
from support.compare import SideBySide
from support.random_cases import number_of_cases
from support.replay import leaves
from support.scenario_envs import BOTH, MIXED_CLOCKS, RESPAWN, TURNS, Echo, StepCounter, runner_of
from support.scripted import Step, scripted
from support.worlds import make_world

import fastmarl
from fastmarl.batches import (
    add_aligned_gae,
    add_gae,
    add_n_step_returns,
    add_returns,
    add_vtrace,
    aligned,
    columns,
    sequences,
)
from fastmarl.errors import BatchError
from fastmarl.testing import CountingEnv

WORLDS = range(300_000, 300_000 + number_of_cases(12, most=40))
ONE_AT_A_TIME = ("obs", "actions", "rewards", "terminateds", "truncateds")


def pairs_of(seed: int, **options: Any) -> tuple[Any, list]:
    """A world and what its runner returned in all calls, of several blocks, beside what it should be."""
    world = make_world(random.Random(seed))
    return world, [*SideBySide(world, **options).run()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", WORLDS)
def test_columns_are_the_steps_in_order(seed):
    world, pairs = pairs_of(seed)
    got, want = columns([chunk for chunk, _ in pairs], next_obs=True), oracle.flat(pairs)
    assert list(got) == list(want)
    for module, batch in want.items():
        assert {*batch, "eps_id", "serial", "two", "weights_seq_no"} == set(got[module])
        for name in (*ONE_AT_A_TIME, "new_obs", "final_obs", "seq_lens"):
            oracle.assert_column(got[module][name], world, module, name, batch[name])
        assert got[module]["agent_id"].tolist() == batch["agent_id"]
        assert got[module]["serial"].tolist() == batch["obs"]
        assert got[module]["two"].tolist() == [[serial, -serial] for serial in batch["obs"]]


def in_turn(chunks: list) -> list:
    """Return each chunk in one of several forms: as it is, sliced, pickled, joined, compacted."""
    return [[as_it_is, sliced, pickled, joined, compacted][i % 5](chunk) for i, chunk in enumerate(chunks)]


def as_it_is(chunk: Any) -> Any:
    return chunk


def sliced(chunk: Any) -> Any:
    return chunk[:]


def pickled(chunk: Any) -> Any:
    mapping_fn, chunk.agent_to_module_mapping_fn = chunk.agent_to_module_mapping_fn, None
    other = pickle.loads(pickle.dumps(chunk))
    chunk.agent_to_module_mapping_fn = other.agent_to_module_mapping_fn = mapping_fn
    return other


def joined(chunk: Any) -> Any:
    half = len(chunk) // 2
    whole, rest = chunk[:half], chunk.slice(slice(half, None), len_lookback_buffer=chunk.lookback + half)
    whole.concat_episode(rest)
    in_order = list(whole.agent_episodes) == list(chunk.agent_episodes)
    return whole if in_order else chunk


def compacted(chunk: Any) -> Any:
    chunk = chunk.slice(slice(None)) if len(chunk) % 2 else chunk
    chunk.compact()
    return chunk


def assert_same_batches(got: dict, want: dict) -> None:
    assert list(got) == list(want)
    for module, batch in want.items():
        assert list(got[module]) == list(batch)
        for name, column in batch.items():
            for one, other in zip(leaves(got[module][name]), leaves(column), strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)


def without_waiting(batches: dict) -> dict:
    """Empty what chunks know of agents that have acted once and wait; copies and slices know nothing of these."""
    for batch in batches.values():
        has_no_step = ~batch["active"].any(0)
        for leaf in (*leaves(batch["final_obs"]), batch["final_t"], batch["continues"]):
            leaf[has_no_step] = 0
    return batches


@pytest.mark.parametrize("seed", WORLDS[::4])
def test_batches_of_slices_joins_and_pickles_are_those_of_chunks(seed):
    """Their columns lie in no block; here they take turns with some that do."""
    _, pairs = pairs_of(seed, record_env_state=True)
    chunks = [chunk for chunk, _ in pairs]
    agents = list(dict.fromkeys(id_ for each in chunks for id_ in each.agent_ids))
    for make in (
        lambda given: columns(given, next_obs=True),
        lambda given: sequences(given, max_seq_len=3, burn_in=2),
        lambda given: without_waiting(aligned(given, agents=agents)),
    ):
        assert_same_batches(make(in_turn(chunks)), make(chunks))


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("max_seq_len", [1, 3, 8])
@pytest.mark.parametrize("burn_in", [0, 1, 4])
@pytest.mark.parametrize("seed", WORLDS[::10])
def test_sequences_are_pieces_of_trajectories(seed, burn_in, max_seq_len):
    world, pairs = pairs_of(seed)
    chunks, steps = [chunk for chunk, _ in pairs], burn_in + max_seq_len
    numbered = {
        module: {"row": 1 + np.arange(len(batch["rewards"])), "nested": ({"x": batch["two"]},)}
        for module, batch in columns(chunks).items()
    }
    got = sequences(chunks, max_seq_len=max_seq_len, burn_in=burn_in, extra_columns=numbered)
    want = oracle.cut(pairs, max_seq_len, burn_in)
    assert got.keys() == want.keys()
    for module, found in want.items():
        batch = got[module]
        assert batch["seq_lens"].tolist() == [len(sequence["obs"]) for sequence in found]
        oracle.assert_column(batch["final_obs"], world, module, "final_obs", [one["final_obs"] for one in found])
        for b, sequence in enumerate(found):
            n = len(sequence["obs"])
            for name in ONE_AT_A_TIME:
                mine = [leaf[b] for leaf in leaves(batch[name])]
                assert all(leaf.shape[0] == steps and not leaf[n:].any() for leaf in mine), name
                plain = _like(batch[name], [leaf[:n] for leaf in mine])
                oracle.assert_column(plain, world, module, name, sequence[name])
            assert batch["loss_mask"][b].tolist() == sequence["loss_mask"] + [False] * (steps - n)
            rows = [0 if row is None else row + 1 for row in sequence["rows"]]
            assert batch["row"][b].tolist() == rows + [0] * (steps - n)
            assert batch["nested"][0]["x"][b, :n, 0].tolist() == [
                serial if row else 0 for serial, row in zip(sequence["obs"], rows, strict=True)
            ]
        assert batch["loss_mask"].sum() == len(numbered[module]["row"])


def test_extra_columns_have_zeros_for_burn_in_of_earlier_calls():
    config = fastmarl.EnvRunnerConfig(env=lambda config: CountingEnv(), episode_lookback_horizon=3)
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=4)
    (batch,) = sequences(
        runner.sample(num_timesteps=4),
        max_seq_len=4,
        burn_in=2,
        extra_columns={"default_policy": {"row": 1 + np.arange(8)}},
    ).values()
    assert batch["obs"][:, :, 0].tolist() == [[2, 3, 4, 5, 6, 7]] * 2
    assert batch["row"].tolist() == [[0, 0, 1, 2, 3, 4], [0, 0, 5, 6, 7, 8]]


def _like(struct: Any, flat: list) -> Any:
    """The leaves in the nesting of `struct`, in the order of `leaves()`."""
    if isinstance(struct, dict):
        rebuilt = {}
        for key in sorted(struct):
            n = len(leaves(struct[key]))
            rebuilt[key], flat = _like(struct[key], flat[:n]), flat[n:]
        return rebuilt
    if isinstance(struct, tuple):
        return tuple(_like(part, [leaf]) for part, leaf in zip(struct, flat, strict=True))
    return flat[0]


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("lookback", [0, 1, 5])
@pytest.mark.parametrize("script", [MIXED_CLOCKS, TURNS, RESPAWN], ids=["mixed clocks", "turns", "respawn"])
def test_the_state_of_a_sequence_is_that_of_its_first_step(script, lookback, burn_in):
    """The module's memory is how often an agent has acted."""
    options = {"policies": {"memory": StepCounter()}, "respawn": True, "episode_lookback_horizon": lookback}
    runner = runner_of(script, num_envs_per_env_runner=3, **options)
    burned, sequences_seen = 0, 0
    for n in [40, 7, 50, 1, 23, 40] * 2:
        chunks = runner.sample(num_timesteps=n)
        if not any(chunk.agent_episodes for chunk in chunks):
            continue
        batch = sequences(chunks, max_seq_len=4, burn_in=burn_in, outputs=["count"])["memory"]
        assert "weights_seq_no" not in batch
        expected_first = []
        for chunk in chunks:
            for part in chunk.agent_episodes.values():
                for begin in range(0, len(part), 4):
                    warm = min(burn_in, part.lookback + begin)
                    expected_first.append(part.t_started + begin - warm)
                    burned += warm
        h, c = batch["state_in"]["h"], batch["state_in"]["nested"]["c"]
        assert h.shape == (len(expected_first), 2) and c.shape == (len(expected_first),)
        assert h[:, 0].tolist() == h[:, 1].tolist() == c.tolist() == expected_first
        last = np.array(expected_first) + batch["seq_lens"]
        assert batch["state_out"]["h"][:, 0].tolist() == last.tolist()
        for b, first in enumerate(expected_first):
            n_steps = batch["seq_lens"][b]
            assert batch["count"][b, :n_steps, 0].tolist() == [*range(first, first + n_steps)]
        sequences_seen += len(expected_first)
    assert sequences_seen > 50 and (burned > 50) == (burn_in > 0)


def test_burn_in_does_not_begin_where_there_is_no_state():
    runner = runner_of(MIXED_CLOCKS, policies={"memory": StepCounter()})
    runner.sample(num_timesteps=10, random_actions=True)
    chunks = runner.sample(num_timesteps=10)
    with pytest.raises(BatchError, match=r"agent 'a\d'.*an action chosen at random"):
        sequences(chunks, max_seq_len=5, burn_in=1)
    chunks = runner.sample(num_timesteps=10, force_reset=True)
    assert sequences(chunks, max_seq_len=5, burn_in=1)["memory"]["state_in"]["h"][0].tolist() == [0, 0]


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dict", "callable", "modules"])
@pytest.mark.parametrize("seed", WORLDS[::2])
def test_aligned_steps_are_where_the_actions_were(seed, kind):
    world, pairs = pairs_of(seed, record_env_state=True)
    chunks, members, given = [chunk for chunk, _ in pairs], {}, {}
    if kind == "dict":
        groups: Any = {module: [a for a in world.agents if world.module_of[a] == module] for module in world.obs_kinds}
        members = given = groups
        options = {"groups": groups}
    else:
        agents = [agent for agent in reversed(world.agents) if any(agent in want.agents for _, want in pairs)]
        for agent in agents if kind == "modules" else reversed(world.agents):
            members.setdefault(world.module_of[agent], []).append(agent)
        given = {"agents": [*reversed(world.agents)]}
        options = given if kind == "modules" else given | {"groups": lambda agent, episode: world.module_of[agent]}
    got, want = aligned(chunks, **options), oracle.aligned(pairs, members)
    assert set(got) == {group for group, found in want.items() if found}
    first_E = [chunk.env_t_started for chunk in chunks]
    for found in want.values():
        for t, chunk, _ in found:
            if t is not None:
                first_E[chunk] = min(first_E[chunk], t)
    rows_E = [chunk.env_t - first for chunk, first in zip(chunks, first_E, strict=True)]
    total = 0.0
    for group, batch in got.items():
        _assert_aligned(world, group, batch, want[group], members[group], first_E, rows_E)
        states = batch["env_state"]
        for e, (_, expected) in enumerate(pairs):
            said = [[*expected.id_, t] for t in range(first_E[e], first_E[e] + rows_E[e] + 1)]
            assert states[:, e].tolist() == said + [[0, 0, 0]] * (len(states) - len(said))
        total += batch["rewards"].sum()
    assert total == sum(chunk.get_return() for chunk in chunks)
    assert sum(batch["active"].sum() for batch in got.values()) == sum(chunk.agent_steps() for chunk in chunks)


def _assert_aligned(world, group, batch, found, members, first_E, rows_E):
    """Every entry is what the oracle has there, or zeros."""
    shape = max(rows_E), len(rows_E), len(members)
    assert batch["active"].shape == shape and batch["seq_lens"].tolist() == rows_E
    assert batch["first_env_t"].tolist() == first_E
    assert [ids.tolist() for ids in batch["agent_id"]] == [members] * len(rows_E)
    active = np.zeros(shape, bool)
    for (t, e, a), entry in found.items():
        if t is None:
            assert batch["final_t"][e, a] == entry["env_t"] - first_E[e]
            final = _like(batch["final_obs"], [leaf[e, a][None] for leaf in leaves(batch["final_obs"])])
            oracle.assert_column(final, world, group, "final_obs", [entry["final_obs"]])
            continue
        place = t - first_E[e], e, a
        active[place] = True
        for name in ONE_AT_A_TIME:
            one = _like(batch[name], [leaf[place][None] for leaf in leaves(batch[name])])
            oracle.assert_column(one, world, group, name, [entry[name]])
        assert batch["serial"][place] == entry["obs"]
    np.testing.assert_array_equal(batch["active"], active)
    for name in (*ONE_AT_A_TIME, "serial", "two"):
        assert not any(leaf[~active].any() for leaf in leaves(batch[name])), f"{name} of those that did not act"


@pytest.mark.parametrize("groups", [None, lambda agent_id, chunk: "all"])
def test_an_order_of_agents_that_lacks_one_is_refused(groups):
    """Else its steps would be in no row."""
    chunks = runner_of().sample(num_episodes=2)
    with pytest.raises(BatchError, match=r"`agents` lacks \['a0'\], which have steps; add them, or exclude them with"):
        aligned(chunks, agents=["a1", "nobody"], groups=groups)
    (batch,) = aligned(chunks, groups=lambda agent_id, chunk: "some" if agent_id == "a1" else None).values()
    assert set(batch["agent_id"].ravel()) == {"a1"}
    (batch,) = aligned(chunks, agents=["nobody", "a1", "a0"], groups=groups).values()
    assert batch["active"].sum() == sum(chunk.agent_steps() for chunk in chunks)


def test_groups_may_change_with_the_episode():
    four = range(4)
    first, second = runner_of([four, four, four, Step(four, terminated=True)]).sample(num_episodes=2)

    def team(agent_id, episode):
        if episode is first:
            return "odd" if agent_id % 2 else "even"
        return "odd" if agent_id == 2 else None

    batches = aligned([first, second], groups=team, agents=[3, 2, 1, 0])
    assert {group: ids["agent_id"].tolist() for group, ids in batches.items()} == {
        "odd": [[3, 1], [2, None]],
        "even": [[2, 0], [None, None]],
    }
    assert batches["odd"]["active"].all(0).tolist() == [[True, True], [True, False]]
    assert batches["even"]["active"].any(0).tolist() == [[True, True], [False, False]]
    assert "env_state" not in batches["odd"]


def test_an_agents_module_may_change_with_the_episode():
    asked = []

    def mapping(agent_id, episode):
        asked.append(agent_id)
        return "right" if agent_id == "a1" and len(asked) <= 2 else "left"

    runner = runner_of(policies={"left": Echo(), "right": Echo()}, policy_mapping_fn=mapping)
    episodes = runner.sample(num_episodes=2)
    batches = aligned(episodes)
    assert batches["left"]["agent_id"].tolist() == [["a0", "a1"]] * 2
    assert batches["left"]["active"].all(0).tolist() == [[True, False], [True, True]]
    assert batches["right"]["agent_id"].tolist() == [["a1"]] * 2
    assert batches["right"]["active"].any(0).tolist() == [[True], [False]]


def value_of(obs: Any) -> torch.Tensor:
    return torch.sin(torch.as_tensor(obs)[:, 0] * 0.7).requires_grad_()


ENDINGS = [  # a1 terminates at 3, a2 is truncated at 5, a0 goes on to the end, and waits at 0, 4 and 8
    Step(["a1", "a2"]),
    *(Step(["a0", "a1", "a2"], {"a0": t, "a1": -1, "a2": 0.5}) for t in (1, 2)),
    Step(["a0", "a1", "a2"], {"a0": 0, "a1": -1, "a2": 0.5}, terminated=["a1"]),
    Step(["a2"], {"a0": -4}),
    Step(["a0", "a2"], {"a0": -5}, truncated=["a2"]),
    *(Step(["a0"] if t < 8 else [], {"a0": -t}) for t in (6, 7, 8)),
    Step(["a0"], {"a0": -9}, terminated=True),
]


def ending_chunks() -> list:
    """Cut in many places; a0 waits at some."""
    runner = runner_of(ENDINGS)
    return [chunk for n in (1, 2, 3, 4, 8, 20) for chunk in runner.sample(num_timesteps=n)]


@pytest.fixture
def batch() -> dict:
    (made,) = columns(ending_chunks()).values()
    return made


def expected_advantages(part: Any, gamma: float, lambda_: float) -> list[float]:
    values = np.sin(part.get_observations()[:, 0].astype(np.float32) * np.float32(0.7)).astype(np.float64)
    last = 0.0 if part.is_terminated else values[-1]
    return oracle.advantages(part.get_rewards().tolist(), values[:-1].tolist(), last, gamma, lambda_)


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 0.8), (1, 1), (0.99, 0), (0, 0.5)])
def test_gae_of_each_trajectory(gamma, lambda_):
    chunks = ending_chunks()
    (batch,) = columns(chunks).values()
    add_gae(batch, gamma=gamma, lambda_=lambda_, value_fn=value_of)
    parts = [part for chunk in chunks for part in chunk.agent_episodes.values()]
    assert {(p.is_terminated, p.is_truncated) for p in parts} == {(True, False), (False, True), (False, False)}
    want = [advantage for part in parts for advantage in expected_advantages(part, gamma, lambda_)]
    np.testing.assert_allclose(batch["advantages"], want, rtol=1e-5, atol=1e-6)
    values = value_of(batch["obs"]).detach().numpy()
    np.testing.assert_allclose(batch["value_targets"], np.array(want) + values, rtol=1e-5, atol=1e-6)
    assert batch["advantages"].dtype == batch["value_targets"].dtype == np.float32

    recorded = batch | {"vf_preds": values}
    add_gae(recorded, gamma=gamma, lambda_=lambda_, last_values=value_of(batch["final_obs"]))
    np.testing.assert_array_equal(recorded["advantages"], batch["advantages"])


def test_gae_of_aligned_steps_is_that_of_the_trajectories():
    chunks = ending_chunks()
    (batch,) = aligned(chunks).values()
    steps, n_chunks, n_agents = batch["active"].shape
    clock = batch["first_env_t"] + np.arange(steps + 1)[:, None]
    for values in (value_of_clock(clock), np.repeat(value_of_clock(clock)[..., None], n_agents, 2)):
        add_aligned_gae(batch, values, gamma=0.9, lambda_=0.8)
        for e, chunk in enumerate(chunks):
            for a, agent in enumerate(batch["agent_id"][e]):
                active = batch["active"][:, e, a]
                got = batch["advantages"][:, e, a]
                assert not got[~active].any() and not batch["value_targets"][:, e, a][~active].any()
                if agent in chunk.agent_episodes:
                    want = expected_advantages(chunk.agent_episodes[agent], 0.9, 0.8)
                    np.testing.assert_allclose(got[active], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(BatchError, match=r"values of shape .* got \(1, 2\)"):
        add_aligned_gae(batch, np.zeros((1, 2)), gamma=0.9, lambda_=0.8)
    assert n_chunks > 5


def value_of_clock(clock: np.ndarray) -> np.ndarray:
    """Return value_of() for observations at these env steps."""
    return np.sin(clock.astype(np.float32) * np.float32(0.7))


@pytest.mark.parametrize("value_fn", [None, value_of])
def test_discounted_returns(value_fn):
    chunks = ending_chunks()
    (batch,) = columns(chunks).values()
    add_returns(batch, gamma=0.5, value_fn=value_fn)
    want = []
    for chunk in chunks:
        for part in chunk.agent_episodes.values():
            after = 0.0 if value_fn is None or part.is_terminated else value_of(part.get_observations()[-1:]).item()
            found = []
            for reward in part.get_rewards()[::-1].tolist():
                after = reward + 0.5 * after
                found.append(after)
            want += found[::-1]
    np.testing.assert_allclose(batch["returns_to_go"], want, rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.9, 1.0, 0.0])
def test_vtrace_and_n_step_returns_are_gae_where_they_should_be(batch, gamma):
    """V-trace with the weights that have sampled is GAE with lambda 1; of one step it is lambda 0, of all it is 1."""
    batch["action_logp"] = np.log(np.linspace(0.1, 0.9, len(batch["rewards"]))).astype(np.float32)
    for lambda_, add in (
        (1, lambda b: add_vtrace(b, b["action_logp"], gamma=gamma, value_fn=value_of)),
        (1, lambda b: add_n_step_returns(b, n_step=10_000, gamma=gamma, value_fn=value_of)),
        (0, lambda b: add_n_step_returns(b, n_step=1, gamma=gamma, value_fn=value_of)),
    ):
        expected, got = dict(batch), dict(batch)
        add_gae(expected, gamma=gamma, lambda_=lambda_, value_fn=value_of)
        add(got)
        for name in ("advantages", "value_targets"):
            assert got[name].dtype == np.float32
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-6, atol=1e-6)


def test_vtrace_with_newer_weights(batch):
    """Consequences of actions that the newer weights would not take have no weight."""
    n = len(batch["rewards"])
    batch["action_logp"] = np.zeros(n, np.float32)
    values, last = value_of(batch["obs"]).detach().numpy(), value_of(batch["final_obs"])
    add_vtrace(batch, np.full(n, -1e3), gamma=0.9, values=values, last_values=last)
    assert not batch["advantages"].any()
    np.testing.assert_allclose(batch["value_targets"], values, rtol=1e-6)
    for clip in (1.0, 2.0):
        add_vtrace(batch, np.full(n, 5.0), gamma=0.9, lambda_=0.0, clip_rho=clip, values=values, last_values=last)
        one_step = dict(batch)
        add_gae(one_step, gamma=0.9, lambda_=0.0, value_fn=value_of)
        expected = values + clip * one_step["advantages"]
        np.testing.assert_allclose(batch["value_targets"], expected, rtol=1e-4, atol=1e-5)


def test_bad_arguments_of_vtrace_and_n_step_returns_are_errors(batch):
    n = len(batch["rewards"])
    logp = np.zeros(n)
    with pytest.raises(BatchError, match="needs the column 'action_logp'"):
        add_vtrace(batch, logp, gamma=0.9, value_fn=value_of)
    batch["action_logp"] = logp
    for options, text in (
        ({"gamma": 1.1}, "gamma in"),
        ({"gamma": 0.9, "lambda_": -1}, "lambda_ in"),
        ({"gamma": 0.9, "clip_rho": 0}, "clip_rho > 0"),
        ({"gamma": 0.9, "clip_pg_rho": np.nan}, "clip_pg_rho > 0"),
    ):
        with pytest.raises(BatchError, match=text):
            add_vtrace(batch, logp, value_fn=value_of, **options)
    with pytest.raises(BatchError, match="log-probabilities in an array of shape"):
        add_vtrace(batch, logp[1:], gamma=0.9, value_fn=value_of)
    with pytest.raises(BatchError, match=r"row 0 of \d+ log-probabilities is NaN"):
        add_vtrace(batch, logp * np.nan, gamma=0.9, value_fn=value_of)
    with pytest.raises(BatchError, match=r"pass value_fn or values to add_vtrace\(\)"):
        add_vtrace(batch, logp, gamma=0.9)
    with pytest.raises(BatchError, match=f"row 1 of {n} has an action that had probability 0"):
        add_vtrace(
            batch | {"action_logp": np.where(np.arange(n) == 1, -np.inf, logp)}, logp, gamma=0.9, value_fn=value_of
        )
    for n_step in (0, 1.5, np.nan, np.inf):
        with pytest.raises(BatchError, match="n_step must be a positive integer"):
            add_n_step_returns(batch, n_step=n_step, gamma=0.9, value_fn=value_of)


def test_bad_values_are_refused(batch):
    options = {"gamma": 0.9, "lambda_": 0.9}
    n, s = len(batch["rewards"]), len(batch["seq_lens"])
    with pytest.raises(BatchError, match="no 'vf_preds'; pass value_fn to add_gae"):
        add_gae(batch, **options)
    batch["vf_preds"] = np.zeros(n)
    with pytest.raises(BatchError, match="for 'final_obs'; pass value_fn or last_values"):
        add_gae(batch, **options)
    with pytest.raises(BatchError, match=rf"expected {s} values .* got shape \({n},\)"):
        add_gae(batch, last_values=np.zeros(n), **options)
    with pytest.raises(BatchError, match=rf"expected {s} values .* got shape \({s}, 1\)"):
        add_gae(batch, value_fn=lambda obs: torch.zeros(len(obs), 1), **options)
    batch["vf_preds"][3] = np.nan
    with pytest.raises(BatchError, match=f"row 3 of {n} values is NaN.*remove 'vf_preds'"):
        add_gae(batch, last_values=np.zeros(s), **options)
    batch["vf_preds"][3] = 0
    with pytest.raises(BatchError, match=rf"row \d of {s} values is NaN; these are the values of 'final_obs'"):
        add_gae(batch, last_values=np.full(s, np.nan), **options)
    for name in options:
        with pytest.raises(BatchError, match=rf"{name} in \[0, 1\], got 1.5"):
            add_gae(batch | {"vf_preds": np.zeros(n)}, last_values=np.zeros(s), **(options | {name: 1.5}))


ESTIMATES = {
    "add_gae": lambda batch: add_gae(batch, gamma=0.9, lambda_=0.9, value_fn=value_of),
    "add_vtrace": lambda batch: add_vtrace(batch, batch["action_logp"], gamma=0.9, value_fn=value_of),
    "add_n_step_returns": lambda batch: add_n_step_returns(batch, n_step=2, gamma=0.9, value_fn=value_of),
    "add_returns": lambda batch: add_returns(batch, gamma=0.9, value_fn=value_of),
}


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
def test_rows_that_are_not_those_of_the_trajectories_are_refused(batch, estimate):
    """Estimates would otherwise use the wrong rows, or memory that was never written."""
    n, lengths = len(batch["rewards"]), batch["seq_lens"]
    batch["action_logp"] = np.zeros(n)
    for name in ("rewards", "terminateds"):
        for column in (batch[name][:-1], np.append(batch[name], 0), batch[name][:, None]):
            with pytest.raises(BatchError, match=rf"expected {n} rows in '{name}', the sum of 'seq_lens', got .*shape"):
                estimate(batch | {name: column})
    with pytest.raises(BatchError, match=f"expected {n - lengths[-1]} rows in 'rewards'"):
        estimate(batch | {"seq_lens": lengths[:-1]})
    for wrong in (np.append(lengths, 0), lengths[:, None]):
        with pytest.raises(BatchError, match="expected 'seq_lens' >= 1, one for each trajectory"):
            estimate(batch | {"seq_lens": wrong})
    with pytest.raises(BatchError, match=f"row 2 of {n} rewards is NaN"):
        estimate(batch | {"rewards": np.where(np.arange(n) == 2, np.nan, batch["rewards"])})


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
def test_estimates_of_numbers_of_any_kind(batch, estimate):
    batch["action_logp"], batch["rewards"] = np.zeros(len(batch["rewards"])), np.round(batch["rewards"])
    given = dict(batch)
    estimate(batch)
    kinds = [
        torch.from_numpy,
        lambda rewards: torch.from_numpy(rewards).bfloat16(),
        np.float16,
        lambda rewards: rewards.astype(">f8"),
        np.ndarray.tolist,
    ]
    for kind in kinds:
        estimate(other := given | {"rewards": kind(given["rewards"])})
        for name in batch.keys() - given.keys():
            np.testing.assert_array_equal(other[name], batch[name])


def test_agents_that_do_not_fit_into_one_column_are_refused():
    spaces = {agent: gym.spaces.Box(-np.inf, np.inf, (n,), np.float32) for agent, n in (("a0", 4), ("a1", 2))}
    runner = runner_of(
        env=scripted([BOTH, BOTH, BOTH, Step(BOTH, terminated=True)], space=spaces),
        policies={"a0": Echo(), "a1": Echo()},
        policy_mapping_fn=lambda agent_id, episode: agent_id,
    )
    episodes = runner.sample(num_episodes=2)
    assert [batch["obs"].shape for batch in aligned(episodes).values()] == [(3, 2, 1, 4), (3, 2, 1, 2)]
    with pytest.raises(BatchError, match=r"'obs' of agent 'a1' is float32 of shape \(2,\), but that of agent 'a0'"):
        aligned(episodes, groups={"both": ["a0", "a1"]})
    with pytest.raises(BatchError, match="`agents` must be None if `groups` is a dict"):
        aligned(episodes, groups={"both": ["a0"]}, agents=["a0"])
    with pytest.raises(BatchError, match=r"among the recorded \['weights_seq_no'\], got 'logp'"):
        columns(episodes, outputs=["logp"])
    with pytest.raises(BatchError, match=r"expected 6 rows in the extra column 'x'.*\(5,\)"):
        sequences(episodes, max_seq_len=2, extra_columns={"a0": {"x": np.zeros(5)}})
    with pytest.raises(BatchError, match=r"modules \['a2'\], which have no steps .* \(modules: \['a0', 'a1'\]\)"):
        sequences(episodes, max_seq_len=2, extra_columns={"a0": {"x": np.zeros(6)}, "a2": {"x": np.zeros(6)}})
    with pytest.raises(BatchError, match="max_seq_len >= 1"):
        sequences(episodes, max_seq_len=0)


@pytest.mark.parametrize("order", [1, -1])
def test_an_output_that_a_call_lacks_is_nan_there(order):
    """Also of the last chunk of many, whose rows lie far behind in what the call has recorded."""
    runner = runner_of(env="fastmarl.simple_spread", policies={"p": None}, num_envs_per_env_runner=4)
    *_, without = runner.sample(num_timesteps=200, random_actions=True)
    *_, chunk = runner.sample(num_timesteps=200)
    alone = columns([chunk], outputs=["vf_preds"])["p"]["vf_preds"]
    n_random = without.agent_steps()
    expected = np.concatenate([np.full(n_random, np.nan, np.float32), alone][::order])
    chunks = [without, chunk][::order]
    flat = columns(chunks, outputs=["vf_preds"])["p"]["vf_preds"]
    np.testing.assert_array_equal(flat, expected)
    batch = sequences(chunks, max_seq_len=3, burn_in=1, outputs=["vf_preds"])["p"]
    np.testing.assert_array_equal(batch["vf_preds"][batch["loss_mask"]], expected)
    batch = aligned(chunks, outputs=["vf_preds"])["p"]
    in_order = batch["vf_preds"].transpose(1, 2, 0)[batch["active"].transpose(1, 2, 0)]
    np.testing.assert_array_equal(in_order, expected)


MAKES = {"columns": columns, "sequences": lambda *a, **k: sequences(*a, max_seq_len=3, **k), "aligned": aligned}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_names_of_outputs_are_those_of_all_modules(make):
    """Also if they come one by one; a text is no names."""
    mapping = lambda agent_id, episode: "p" if agent_id == "a0" else "q"  # noqa: E731
    chunks = runner_of(policies={"p": Echo(), "q": Echo()}, policy_mapping_fn=mapping).sample(num_episodes=2)
    expected = make(chunks, outputs=["weights_seq_no"])
    oracle.assert_same_bits(make(chunks, outputs=(name for name in ["weights_seq_no"])), expected)
    assert all("weights_seq_no" in batch for batch in expected.values()) and len(expected) == 2
    with pytest.raises(BatchError, match=r"must be a list of names, such as \['weights_seq_no'\], got the string"):
        make(chunks, outputs="weights_seq_no")


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_chunks_may_come_one_by_one(make):
    chunks = runner_of(policies={"p": None}).sample(num_episodes=3)
    oracle.assert_same_bits(make(iter(chunks)), make(chunks))


def test_nothing_gives_nothing():
    assert columns([]) == sequences([], max_seq_len=3) == aligned([]) == {}


def test_batches_share_no_memory_with_episodes():
    (chunk,) = runner_of(MIXED_CLOCKS, policies={"memory": StepCounter()}).sample(num_timesteps=12)
    before = chunk.get_observations()["a1"].copy()
    alone = chunk[:]
    alone.agent_episodes = {"a1": alone.agent_episodes["a1"]}
    for batch in (columns([chunk]), columns([alone]), sequences([chunk], max_seq_len=4), aligned([chunk])):
        for column in batch["memory"].values():
            for leaf in leaves(column):
                if leaf.dtype != object:
                    leaf[...] = 1
    np.testing.assert_array_equal(chunk.get_observations()["a1"], before)
    assert chunk.get_rewards()["a1"].tolist() == [0] * len(chunk.agent_episodes["a1"])


def test_where_there_was_no_mask_nothing_is_ruled_out():
    masks = {agent: {"action_mask": np.array([1, 1, 0])} for agent in BOTH}
    script = [*[BOTH] * 4, *[Step(BOTH, infos=masks)] * 3]
    runner = runner_of(script, policies={"p": None})
    (first,), (second,) = runner.sample(num_timesteps=3), runner.sample(num_timesteps=3)
    assert "action_mask" not in next(iter(first.agent_episodes.values())).extra_model_output_keys
    (batch,) = columns([first, second], outputs=["action_mask"]).values()
    first.concat_episode(second)
    (joined_batch,) = columns([first], outputs=["action_mask"]).values()
    for masks in (batch["action_mask"][:3], joined_batch["action_mask"][:3]):
        assert masks.tolist() == [[True] * 3] * 3
    assert batch["action_mask"][-1].tolist() == [True, True, False]
