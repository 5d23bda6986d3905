"""A column has a dtype that holds all its values, whichever of them came first."""

from itertools import product

import numpy as np
import pytest
from rllib.differential.cases import TURNS, WAITING, both, case, world
from rllib.differential.configs import LSTM
from rllib.differential.known import CorrectedLoop, unexpected
from rllib.differential.runs import Case, Sample, play
from support.exhaustive import further, params

from fastmarl.rllib import MultiAgentEnvRunner
from fastmarl.rllib.episodes import MultiAgentEpisode

GREEDY, EXPLORING = Sample(num_timesteps=9, explore=False), Sample(num_timesteps=9, explore=True)
RANDOM = Sample(num_timesteps=9, random_actions=True)
ORDERS = {
    "greedy, exploring": (GREEDY, EXPLORING, GREEDY, EXPLORING),
    "exploring, greedy": (EXPLORING, GREEDY, GREEDY, EXPLORING),
    "random, too": (RANDOM, GREEDY, EXPLORING, RANDOM, RANDOM, EXPLORING),
    "random in single steps": (EXPLORING, *[Sample(num_timesteps=1, random_actions=True)] * 3, EXPLORING),
    "one step each": (Sample(num_timesteps=1, explore=False), *[Sample(num_timesteps=1, explore=True)] * 3),
}


def modes(order: str, **setup) -> Case:
    """Long episodes, sampled in several modes. Float rewards: their sums are the same in both loops."""
    return case(world(3, max_steps=200, **setup.pop("rules")), ORDERS[order], **setup)


ALL_RULES = {"together": {}, "turns": TURNS, "waiting": WAITING}
IN_ORDERS = [*product(ALL_RULES, ORDERS)]
FEW = {*product(ALL_RULES, ["greedy, exploring"]), *product(["waiting"], ORDERS)}


@pytest.mark.parametrize(("rules", "order"), params(IN_ORDERS, FEW))
def test_log_probabilities_of_a_recurrent_module_stay_floats(order, rules):
    chosen = modes(order, rules=ALL_RULES[rules], model_config=LSTM)
    got, corrected = play(chosen, MultiAgentEnvRunner), play(chosen, CorrectedLoop)
    assert (got.error, corrected.error, got.is_accelerated) == (None, None, True)
    calls = [sampled for sampled in got.returned if isinstance(sampled, list)]
    exploring = [chunk for call, chunks in zip(chosen.calls, calls, strict=True) if call.explore for chunk in chunks]
    found = np.concatenate([
        agent_episode.get_extra_model_outputs("action_logp")
        for chunk in exploring
        for agent_episode in chunk.agent_episodes.values()
    ])  # fmt: skip
    assert np.any(found < 0) and not np.any(found[found < 0] % 1 == 0)
    assert not unexpected(chosen, corrected, got)


@pytest.mark.parametrize("callbacks", ["none", "everything"])
def test_integers_before_a_chunk_leave_its_floats_as_rllib_has_them(callbacks):
    """In chunks of waiting agents, whose lookback is longer than RLlib's (47), and has integers."""
    chosen = modes("greedy, exploring", rules=TURNS, model_config=LSTM, callbacks=callbacks)
    want, got = play(chosen), play(chosen, MultiAgentEnvRunner)
    assert (want.error, got.error, got.is_accelerated) == (None, None, True)
    compared = 0
    for theirs, ours in zip(want.episodes, got.episodes, strict=True):
        for agent, part in theirs.agent_episodes.items():
            expected = part.extra_model_outputs["action_logp"]
            found = ours.agent_episodes[agent].extra_model_outputs["action_logp"]
            if expected.data.dtype == np.float32:
                assert found.data.dtype == np.float32
                compared += found.lookback > expected.lookback and found.data[0] == 0
    assert compared


def test_agents_that_began_at_random_begin_with_the_initial_state():
    """And not with that of an agent of an earlier episode."""
    chosen = case(world(3, max_steps=4), (EXPLORING, RANDOM, EXPLORING), num_envs=1, model_config=LSTM)
    got, corrected = play(chosen, MultiAgentEnvRunner), play(chosen, CorrectedLoop)
    assert (got.error, corrected.error, got.is_accelerated) == (None, None, True)
    assert not unexpected(chosen, corrected, got)


@pytest.mark.parametrize("callbacks", ["none", *further(["everything"])])
@pytest.mark.parametrize("order", ORDERS)
def test_outputs_of_any_form_that_change_their_dtype(order, callbacks):
    """The module's "kept" is 1.5 for all agents where it explores, and an integer or a flag elsewhere."""
    chosen = modes(order, rules=WAITING, modules=both("retyped"), num_envs=2, callbacks=callbacks)
    got, corrected = play(chosen, MultiAgentEnvRunner), play(chosen, CorrectedLoop)
    assert (got.error, corrected.error, got.is_accelerated) == (None, None, True)
    assert not unexpected(chosen, corrected, got)
    found = set()
    for chunk in got.episodes:
        for agent_episode in chunk.agent_episodes.values():
            if "kept" not in agent_episode.extra_model_outputs:
                continue
            kept = agent_episode.extra_model_outputs["kept"].data
            for column in (kept["integer"], *kept["parts"]):
                found |= set(np.nan_to_num(column).ravel().tolist())
    assert 1.5 in found and found <= {0, 1, 1.5}


FIRST_AND_LATER = [
    (np.int32, np.float32, np.float64),
    (np.bool_, np.float32, np.float32),
    (np.bool_, np.int64, np.int64),
    (np.uint8, np.float16, np.float16),
    (np.float32, np.complex64, np.complex64),
    (np.float32, np.float64, np.float32),  # RLlib's: no more than digits are lost
    (np.float32, np.int32, np.float32),
    (np.int32, np.int32, np.int32),
]


@pytest.mark.parametrize(("first", "later", "dtype"), FIRST_AND_LATER)
@pytest.mark.parametrize(
    ("column", "shape"),
    [
        ("rewards", ()),
        *((name, shape) for name in ("observations", "actions", "plain", "nested") for shape in ((), (2,))),
    ],
)
def test_every_column_holds_the_values_that_came_later(first, later, dtype, shape, column):
    early, late = (np.full(shape, 1, first), np.full(shape, 1.5, later))
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda *args, **kwargs: "p0")

    def one(name, value):
        return {"a": value if name == column else np.zeros(2, np.float32) if name != "rewards" else 0.0}

    episode.add_env_reset(observations=one("observations", early), infos={})
    for value in (early, late):
        nested = {"part": (value, np.zeros(1, np.int8))}
        episode.add_env_step(
            one("observations", value),
            one("actions", value),
            one("rewards", value),
            terminateds={"__all__": False},
            truncateds={"__all__": False},
            extra_model_outputs={"a": {"plain": value, "nested": nested}},
        )
    part = episode.to_numpy().agent_episodes["a"]
    outputs = part.extra_model_outputs
    found = {
        "observations": part.observations.data,
        "actions": part.actions.data,
        "rewards": part.rewards.data,
        "plain": outputs["plain"].data,
        "nested": outputs["nested"].data["part"][0],
    }[column]
    assert found.dtype == dtype
    assert found[-1].tolist() == late.astype(dtype).tolist()
    assert outputs["nested"].data["part"][1].dtype == np.int8
