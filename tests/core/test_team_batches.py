"""Batches and replays of teams, against the ledgers of an environment."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from support.exhaustive import further
from support.scripted import Scripted, Step, scripted
from support.team_ledgers import AGENTS, TeamWorld, decisions_of, present_in, rewards_between, team_decisions

import fastmarl
from fastmarl.batches import (
    TeamRewards,
    add_aligned_n_step_returns,
    add_n_step_returns,
    aligned,
    columns,
    with_final_obs,
)
from fastmarl.errors import BatchError, CheckpointError, ConfigError
from fastmarl.learning import TeamReplay

CALLS = [7, 20, 1, 3, 40, 40, 13, 2, 60, 40, 5, 90, 40, 40, 40]
BOX = gym.spaces.Box(0, 9, (1,), np.float32)
SAMPLED = {"long calls": {}, "in many calls, often no agent finishes a step": {"calls": [1, 1, 2] * 250, "num_envs": 1}}


def batches_of(seed, calls=CALLS, num_envs=3, outputs=()):
    """Yield each call's batch and chunks, with the ledgers so far."""
    ledgers = []
    config = fastmarl.EnvRunnerConfig(
        env=TeamWorld, env_config={"ledgers": ledgers, "seed": seed}, num_envs_per_env_runner=num_envs,
        respawn=True, seed=seed, model_config={"fcnet_hiddens": [4]},
    )  # fmt: skip
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for n in calls:
            chunks = runner.sample(num_timesteps=num_envs * n)
            for batch in aligned(chunks, groups={"team": AGENTS}, outputs=outputs).values():
                yield batch, chunks, ledgers


@pytest.mark.parametrize("sampled", SAMPLED)
@pytest.mark.parametrize("seed", range(4))
def test_rewards_of_the_team_equal_the_ledgers(seed, sampled):
    """Those between an agent's decision and its next observation, in whatever call they came."""
    team_rewards, got = TeamRewards(), {}
    for batch, _, ledgers in batches_of(seed, **SAMPLED[sampled]):  # noqa: B007
        rewards = team_rewards(batch)
        assert not rewards[~batch["active"]].any()
        numbers = batch["obs"][batch["active"]][:, 1].astype(int).tolist()
        assert not got.keys() & set(numbers), "a decision came twice"
        got |= dict(zip(numbers, rewards[batch["active"]].tolist(), strict=True))
        team_rewards, former = TeamRewards(), team_rewards
        team_rewards.load_state_dict(former.state_dict())
    want = {}
    for ledger in ledgers:
        decisions = decisions_of(ledger)
        known = [each for each in decisions if each.until is not None]
        want |= {each.obs: rewards_between(decisions, each.t, each.until) for each in known}
    assert got == want and len(got) > 500


@pytest.mark.parametrize("outputs", [None, ["action_logp"]])
def test_batches_without_finished_steps_have_all_columns(outputs):
    forms = {True: set(), False: set()}
    for batch, *_ in batches_of(0, [1, 1, 2] * 50, 1, outputs):
        form = frozenset((name, column.dtype, column.ndim, column.shape[3:]) for name, column in batch.items())
        forms[bool(batch["active"].any())].add(form)
    assert forms[True] == forms[False] and len(forms[True]) == 1


def compacted(chunks):
    for chunk in chunks:
        chunk.compact()
    return chunks


def complete(ledgers, *, running):
    """Return the team's complete decisions by the numbers of what was observed; of episodes that run, or of others."""
    found = {}
    for ledger in ledgers:
        if (not ledger[-1].is_last) == running:
            for decision in team_decisions(ledger).values():
                found[tuple(sorted(decision["obs"].values()))] = decision
    return found


def drawn_from(rows):
    """Return decisions that were drawn, like `complete()`, with the masks of those that act now and next, by sequence.

    Each is followed by what comes after it in its sequence.
    """
    rows = {name: column.numpy() for name, column in rows.items()}
    found = []
    for i, counts in enumerate(rows["loss_mask"]):
        found.append({})
        for t in np.flatnonzero(counts):
            now, following = rows["obs"][i, t : t + 2]
            mask, new_mask = rows["action_mask"][i, t : t + 2]
            acting, awaited, terminated = (rows[name][i, t] for name in ("active", "new_active", "terminateds"))
            assert not terminated or not (following.any() or new_mask.any() or awaited.any())
            number = {agent: int(now[a, 1]) for a, agent in enumerate(AGENTS) if acting[a]}
            assert tuple(sorted(number.values())) not in found[-1]
            found[-1][tuple(sorted(number.values()))] = (
                {
                    "obs": number,
                    "actions": {agent: int(rows["actions"][i, t, AGENTS.index(agent)]) for agent in number},
                    "rewards": rows["rewards"][i, t],
                    "new_obs": {agent: int(following[a, 1]) for a, agent in enumerate(AGENTS) if awaited[a]},
                    "terminateds": terminated,
                },
                mask,
                new_mask,
            )
        for name in ("terminateds", "rewards"):
            assert not rows[name][i][~counts].any(), name
    return found


def check_decisions(got, ledgers):
    """Compare results of `drawn_from()` with the ledgers; returns all decisions."""
    masks = {number: step.masks[agent] for ledger in ledgers for step in ledger for agent, number in step.obs.items()}
    want = complete(ledgers, running=False) | complete(ledgers, running=True)
    for numbers, (decision, mask, new_mask) in (pair for each in got for pair in each.items()):
        assert decision == want[numbers]
        for column, of in ((mask, "obs"), (new_mask, "new_obs")):
            for agent, number in decision[of].items():
                assert column[AGENTS.index(agent)].tolist() == masks[number].astype(bool).tolist(), (of, agent)
    return {numbers: decision for each in got for numbers, (decision, *_) in each.items()}


@pytest.mark.parametrize("sampled", SAMPLED)
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("seed", [0, 1, *further([2, 3])])
def test_decisions_in_the_replay_equal_the_ledgers(seed, length, sampled):
    replay = TeamReplay(10_000, seed, respawn=True)
    for batch, _, ledgers in batches_of(seed, **SAMPLED[sampled]):  # noqa: B007
        replay.add(batch)
    sequences = drawn_from(replay.sample(20_000 if length == 1 else 12_000, length))
    got = check_decisions(sequences, ledgers)
    assert got.keys() >= complete(ledgers, running=False).keys() and len(got) > 400
    assert any(decision["terminateds"] for decision in got.values())
    assert length == 1 or sum(len(each) == length for each in sequences) > 400


def test_sequences_show_what_agents_did_in_decisions_that_are_not_complete():
    replay, found = TeamReplay(10_000, 1, respawn=True), set()
    for batch, _, ledgers in batches_of(1):  # noqa: B007
        replay.add(batch)
        rows = {name: column.numpy() for name, column in replay.sample(2000, 6).items()} if len(replay) else {}
        if rows:
            there = rows["active"] & ~rows["loss_mask"][..., None]
            numbers, actions = rows["obs"][:, :-1][there][:, 1].astype(int), rows["actions"][there]
            found |= set(zip(numbers.tolist(), actions.tolist(), strict=True))
    steps = [step for ledger in ledgers for step in ledger]
    known = {(number, step.actions.get(agent)) for step in steps for agent, number in step.obs.items()}
    assert len(found) > 5 and found <= known


@pytest.mark.parametrize("seed", [0, 1, *further([2, 3])])
def test_whole_episodes_in_the_replay_equal_the_ledgers(seed):
    replay = TeamReplay(10_000, seed, respawn=True)
    for batch, _, ledgers in batches_of(seed):  # noqa: B007
        replay.add(batch)
    episodes = drawn_from(replay.sample_episodes(500))
    assert max(map(len, episodes)) > 20
    check_decisions(episodes, ledgers)
    whole = [complete([ledger], running=False).keys() for ledger in ledgers]
    assert {frozenset(each) for each in episodes} == {frozenset(each) for each in whole if each}
    assert replay.num_episodes == sum(map(bool, whole))


def test_a_replay_keeps_the_latest_decisions_and_is_saved():
    replay, other, whole = (*(TeamReplay(50, 1, respawn=True) for _ in range(2)), 0)
    for i, (batch, _, ledgers) in enumerate(batches_of(0)):
        replay.add(batch)
        other.add(batch)
        if i % 3 == 0:
            state = pickle.loads(pickle.dumps(other.get_state()))
            other = TeamReplay(50, respawn=True)
            other.set_state(state)
        if len(replay):
            one, two = replay.sample(40, 2), other.sample(40, 2)
            assert all((one[name] == two[name]).all() for name in one)
        assert replay.num_episodes == other.num_episodes
        if replay.num_episodes:
            whole += len(check_decisions(drawn_from(replay.sample_episodes(20)), ledgers))
            other.sample_episodes(20)
    check_decisions(drawn_from(replay.sample(500, 3)), ledgers)
    assert whole > 20
    assert 20 < len(replay) <= 50


def test_agents_without_masks_may_do_anything_where_others_had_some():
    replay = TeamReplay(50, respawn=True)
    for i, (batch, *_) in enumerate(batches_of(0)):
        replay.add({name: column for name, column in batch.items() if i == 0 or "mask" not in str(name).lower()})
    rows = replay.sample(500)
    for t, active in enumerate(("active", "new_active")):
        assert rows[active].any() and rows["action_mask"][:, t][rows[active][:, 0]].all(), active


def test_a_state_is_a_copy():
    replay = TeamReplay(50, respawn=True)
    for i, (batch, *_) in enumerate(batches_of(0)):
        replay.add(batch)
        if i == 5:
            state, want = replay.get_state(), replay.sample(30, 4)
    replay.set_state(state)
    got = replay.sample(30, 4)
    assert all((got[name] == want[name]).all() for name in want)
    assert got["rewards"].shape == (30, 4)


def test_bad_capacities_states_and_lengths():
    replay, (batch, *_) = TeamReplay(50, respawn=True), next(iter(batches_of(0)))
    replay.add(batch)
    with pytest.raises(CheckpointError, match="has a capacity of 50, but this one has 60"):
        TeamReplay(60).set_state(replay.get_state())
    state = replay.get_state()
    del state["columns"]["ended"]
    with pytest.raises(CheckpointError, match="no column 'ended': an earlier version"):
        TeamReplay(50).set_state(state)
    with pytest.raises(BatchError, match="'env_state' must be in all of the batches or in none"):
        replay.add(batch | {"env_state": np.zeros((len(batch["active"]) + 1, 3, 2))})
    with pytest.raises(BatchError, match="n and length must be at least 1, got 4 and 0"):
        replay.sample(4, 0)
    with pytest.raises(ConfigError, match="at least 2 decisions, got 1"):
        TeamReplay(1)


def test_sequences_are_as_long_as_asked_for():
    replay = TeamReplay(500, respawn=True)
    for batch, *_ in batches_of(0, CALLS[:4]):
        replay.add(batch)
    rows = replay.sample(3, 200)
    assert rows["rewards"].shape == (3, 200) and not rows["loss_mask"][:, 100:].any()


def test_an_empty_replay_can_not_be_drawn_from():
    with pytest.raises(BatchError, match="no complete decision"):
        TeamReplay(5).sample(1)
    with pytest.raises(BatchError, match="no complete episode to sample; it keeps 5 decisions"):
        TeamReplay(5).sample_episodes(1)


@pytest.mark.parametrize(
    "copied", [lambda chunks: chunks, copy.deepcopy, compacted], ids=["views", "copies", "compacted"]
)
@pytest.mark.parametrize("seed", range(4))
def test_last_rows_show_everyone_who_goes_on(seed, copied):
    """Agents may respawn, or be observed for the first time, in the last env step of a chunk."""
    groups, respawned, ledgers_by_id = {"team": AGENTS}, 0, {}
    for _, chunks, ledgers in batches_of(seed):
        (batch,) = aligned(copied(chunks), groups=groups).values()
        obs, masks = with_final_obs(batch)[..., 1], batch["final_action_mask"]
        respawned += np.sum(batch.get("respawned", 0))
        ledger_of = {number: each for each in ledgers for step in each for number in step.obs.values()}
        for e, n_rows in enumerate(batch["seq_lens"]):
            if numbers := set(obs[:, e].ravel()) - {0}:
                ledgers_by_id[batch["eps_id"][e]] = ledger_of[numbers.pop()]
            ledger = ledgers_by_id[batch["eps_id"][e]]  # that of an earlier chunk if all agents wait
            end = batch["first_env_t"][e] + n_rows
            want = present_in(ledger[: end + 1]).get(end, {})
            assert {agent: n for agent, n in zip(AGENTS, obs[n_rows, e], strict=True) if n} == want
            for agent in want.keys() & ledger[end].obs.keys():  # others show an earlier observation, once more
                a = AGENTS.index(agent)
                returns = "respawned" in batch and batch["respawned"][e, a]
                mask = (batch["respawn_action_mask"] if returns else masks)[e, a]
                assert mask.tolist() == ledger[end].masks[agent].tolist()
    assert respawned > 5


def test_a_teammate_of_another_policy_joins_while_the_first_agent_waits():
    """Nothing has been recorded of the other policy's actions."""
    config = fastmarl.EnvRunnerConfig(
        env=scripted(["a", Step("b", 1), Step("a", 1), Step("ab", 1, terminated=True)], space=BOX), seed=0,
        policies=["p", "q"], policy_mapping_fn=lambda agent, episode: "p" if agent == "a" else "q",
    )  # fmt: skip
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        batches = [aligned(runner.sample(num_timesteps=1), groups={"team": ["a", "b"]})["team"] for _ in range(3)]
    first, second, third = batches
    assert not first["active"].any() and first["final_obs"][..., 0].tolist() == [[0, 1]]
    assert second["active"].tolist() == [[[True, False]], [[False, False]]]
    assert third["active"].tolist() == [[[False, True]], [[True, False]]]


@pytest.mark.parametrize("calls", [[8], [2, 3, 1, 2], [1] * 8])
def test_a_team_that_may_return_has_not_ended(calls):
    alive, dies = Step("a", 1), Step("a", 1, terminated="a")
    script = ["a", alive, dies, Step("", 0), alive, alive, dies, Step("", 0), Step("", 0, terminated=True)]
    config = fastmarl.EnvRunnerConfig(env=scripted(script, space=BOX), respawn=True, seed=0)
    replay = TeamReplay(20, respawn=True)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for n in calls:
            for batch in aligned(runner.sample(num_timesteps=n), groups={"team": ["a"]}).values():
                replay.add(batch)
                is_done = bool(batch["is_done"].any())
                assert replay.num_episodes == is_done
                assert not len(replay) or bool(replay.sample(50)["terminateds"].any()) == is_done
    assert len(replay) >= 3  # the last decision is known to be the last once there is another batch


def test_a_team_that_can_not_return_has_ended_in_an_endless_episode():
    script = ["ab", Step("ab", 1), Step("ab", 1, terminated="b"), *[Step("a", 1)] * 20]
    config = fastmarl.EnvRunnerConfig(env=scripted(script, space=BOX), seed=0)
    dead, whole, back = TeamReplay(20), TeamReplay(20), TeamReplay(20, respawn=True)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for _ in range(4):
            batches = aligned(runner.sample(num_timesteps=2), groups={"dead": ["b"], "whole": ["a", "b"]})
            for replay, team in ((dead, "dead"), (back, "dead"), (whole, "whole")):
                replay.add(batches[team]) if team in batches else None
    assert (dead.num_episodes, whole.num_episodes, back.num_episodes) == (1, 0, 0)
    assert dead.sample_episodes(1)["terminateds"].tolist() == [[False, True]]
    assert len(whole) == 8 and len(back) == 1


def test_agents_that_act_after_they_finished():
    config = fastmarl.EnvRunnerConfig(
        env=scripted(["a", Step("a", 1, terminated="a"), *[Step("a", 1)] * 9], space=BOX), respawn=True, seed=0
    )
    replay = TeamReplay(20)
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        pytest.raises(BatchError, match=r"agent 'a' acts again after it finished: use TeamReplay\(..., respawn=True\)"),
    ):
        replay.add(aligned(runner.sample(num_timesteps=4), groups={"team": ["a"]})["team"])
    assert not len(replay) and not replay.num_episodes


@pytest.mark.parametrize("calls", [[4], [1, 3], [1] * 4])
def test_an_episode_that_the_team_joins_after_a_call(calls):
    replay = TeamReplay(20)
    both, end = Step("ab", 1), Step("ab", 1, terminated=True)
    scripts = [["ab", both, both, both, end], ["a", Step("a", 1), both, both, end]]
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: Scripted(scripts[config.vector_index], space=BOX), num_envs_per_env_runner=2, seed=0
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for n in calls:
            for batch in aligned(runner.sample(num_timesteps=2 * n), groups={"team": ["b"]}).values():
                replay.add(batch)
    assert replay.num_episodes == 2


def test_the_decision_of_an_agent_that_respawns_as_the_other_is_truncated():
    both = Step("ab", 1)
    script = ["ab", both, Step("ab", 1, terminated="b"), Step("a", 1), Step("ab", 1, truncated="a"), Step("b", 1),
              Step("b", 1, terminated=True)]  # fmt: skip
    config = fastmarl.EnvRunnerConfig(env=scripted(script, space=BOX), respawn=True, seed=0)
    replay = TeamReplay(20, respawn=True)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for n in (4, 2):
            replay.add(aligned(runner.sample(num_timesteps=n), groups={"team": ["a", "b"]})["team"])
    rows = {name: column[0].tolist() for name, column in replay.sample_episodes(1).items()}
    assert rows["active"] == [[True, True]] * 2 + [[True, False]] * 2 + [[False, True]] * 2
    assert rows["new_active"] == [[True, True], [True, False], [True, False], [True, True], [False, True], [False] * 2]
    assert rows["obs"] == [[[0], [0]], [[1], [1]], [[2], [0]], [[3], [0]], [[4], [4]], [[0], [5]], [[0], [0]]]
    assert (rows["rewards"], rows["terminateds"]) == ([2, 2, 1, 1, 1, 1], [False] * 5 + [True])


@pytest.mark.parametrize("n_step", [1, 3, 100])
def test_aligned_returns_equal_those_of_flat_columns(n_step):
    for batch, chunks, _ in batches_of(3, CALLS[:6]):
        values = np.sin(with_final_obs(batch)[..., 1])
        add_aligned_n_step_returns(batch, values, n_step=n_step, gamma=0.9)
        (flat,) = columns(chunks).values()
        add_n_step_returns(flat, n_step=n_step, gamma=0.9, value_fn=lambda obs: np.sin(obs[:, 1]))
        active = batch["active"]
        for name in ("value_targets", "advantages"):
            got = dict(zip(batch["obs"][active][:, 1].tolist(), batch[name][active].tolist(), strict=True))
            want = dict(zip(flat["obs"][:, 1].tolist(), flat[name].tolist(), strict=True))
            assert got == pytest.approx(want, abs=1e-5) and not batch[name][~active].any()
