"""Other frameworks' vector environments: each row has what its agent's environment wrote down in a ledger."""

import importlib
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from support.differences import assert_same
from support.exhaustive import params
from support.ledgered.base import TERMINATED, TRUNCATED, Entry
from support.ledgered.worlds import WORLDS

from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.errors import ConfigError, FinishedAgentError
from fastmarl.interop.gymnasium import AgentVectorEnv

N_ENVS, N_STEPS = 2, 75
REFUSED = {
    "rewards after death, dropped": "finished agent was observed again or received a reward",
    "respawn": "finished agent was observed again or received a reward",
    "rewarded at respawn": "finished agent was observed again or received a reward",
    "unequal observations": "all agents must have the same spaces",
    "unequal actions": "all agents must have the same spaces",
}
TAKEN = [name for name in WORLDS if name not in REFUSED]


@dataclass
class Row:
    """An agent after a reset or a step, as a face shows it."""

    observation: Any
    is_active: bool
    reward: float = 0.0
    ended: str = ""
    final: Any = None
    mask: list[int] = field(default_factory=list)


class GymnasiumFace:
    def __init__(self, env, mode, **options):
        self.envs = AgentVectorEnv(env, N_ENVS, autoreset_mode=mode, **options)
        self.mode, self.rows = mode, self.envs._rows

    def reset(self):
        return self._shown(*self.envs.reset(seed=0))

    def step(self, actions):
        observations, rewards, terminations, truncations, infos = self.envs.step(actions)
        shown = self._shown(observations, infos)
        for row, each in enumerate(shown):
            each.reward = rewards[row]
            each.ended = TERMINATED if terminations[row] else TRUNCATED if truncations[row] else ""
            if "final_obs" in infos and infos["_final_obs"][row]:
                each.final = infos["final_obs"][row]
        if self.mode is AutoresetMode.DISABLED and (over := self.rows.is_over).any():
            mask = np.repeat(over, len(self.envs.agents))
            for row, each in enumerate(self._shown(*self.envs.reset(options={"reset_mask": mask}))):
                if mask[row]:
                    shown[row].final, shown[row].observation = shown[row].observation, each.observation
                    shown[row].is_active, shown[row].mask = each.is_active, each.mask
        return shown

    def _shown(self, observations, infos):
        masks = self.rows.action_masks().astype(int).tolist()
        return [
            Row(part_of(observations, row), bool(is_active), mask=masks[row])
            for row, is_active in enumerate(infos["active"])
        ]


class SB3Face:
    def __init__(self, env, **options):
        self.envs = importlib.import_module("fastmarl.interop.sb3").AgentVecEnv(env, N_ENVS, **options)
        self.rows = self.envs._rows

    def reset(self):
        self.envs.seed(0)
        return self._shown(self.envs.reset(), self.envs.reset_infos)

    def step(self, actions):
        observations, rewards, dones, infos = self.envs.step(actions)
        shown = self._shown(observations, infos)
        assert rewards.dtype == np.float32 and dones.dtype == np.bool_
        for each, reward, done, info in zip(shown, rewards, dones, infos, strict=True):
            each.reward = reward
            assert done == ("terminal_observation" in info) == ("TimeLimit.truncated" in info)
            if done:
                each.ended = TRUNCATED if info["TimeLimit.truncated"] else TERMINATED
                each.final = info["terminal_observation"]
        return shown

    def _shown(self, observations, infos):
        masks = [[]] * len(infos)
        if self.envs.has_attr("action_masks"):
            masks = np.array(self.envs.env_method("action_masks")).astype(int).tolist()
        return [Row(part_of(observations, row), info["active"], mask=masks[row]) for row, info in enumerate(infos)]


class TorchRLFace:
    def __init__(self, env, **options):
        self.envs = importlib.import_module("fastmarl.interop.torchrl").TensorDictEnv(env, N_ENVS, **options)
        self.rows = self.envs._rows
        self.first_action = getattr(self.rows.action_space, "start", 0)

    def reset(self):
        self.envs.set_seed(0)
        self.data = self.envs.reset()
        return self._shown(self.data)

    def step(self, actions):
        had_ended = self.data["agents", "done"].flatten().tolist()
        of_agents = actions.reshape(N_ENVS, -1, *actions.shape[1:]) - self.first_action
        self.data["agents", "action"] = torch.from_numpy(of_agents)
        data, self.data = self.envs.step_and_maybe_reset(self.data)
        shown, finals, after = self._shown(self.data), self._shown(data["next"]), data["next", "agents"].flatten()
        for row, each in enumerate(shown):
            each.reward, each.final = after["reward"][row].numpy()[0], finals[row].observation
            assert bool(after["done"][row]) == bool(after["terminated"][row] | after["truncated"][row])
            if after["done"][row] and not had_ended[row]:
                each.ended = TERMINATED if after["terminated"][row] else TRUNCATED
        over = data["next", "done"][:, 0]
        assert torch.equal(over, (data["next", "terminated"] | data["next", "truncated"])[:, 0])
        assert not self.data["done"].any()
        assert not self.data["agents", "done"][over].any()
        return shown

    def _shown(self, data):
        rows = data["agents"].flatten()
        observations = as_arrays(rows["observation"])
        masks = rows["action_mask"].int().tolist() if "action_mask" in rows else [[]] * len(rows)
        return [Row(part_of(observations, row), bool(rows["mask"][row]), mask=masks[row]) for row in range(len(rows))]


def as_arrays(data):
    """TensorDicts as dicts of arrays."""
    return data.numpy() if isinstance(data, torch.Tensor) else {key: as_arrays(value) for key, value in data.items()}


NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
FACES = {
    "gymnasium, next step": (lambda *args, **options: GymnasiumFace(*args, NEXT, **options), False),
    "gymnasium, same step": (lambda *args, **options: GymnasiumFace(*args, SAME, **options), True),
    "gymnasium, disabled": (lambda *args, **options: GymnasiumFace(*args, DISABLED, **options), True),
    "sb3": (SB3Face, True),
    "torchrl": (TorchRLFace, True),
}
NEEDS = {"sb3": ["stable_baselines3"], "torchrl": ["torchrl"]}
EACH_FACE = pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.needs(package) for package in NEEDS.get(name, ())]) for name in FACES
])  # fmt: skip


def part_of(observations, row):
    return map_struct(lambda leaf: leaf[row], observations)


def is_equal(shown, sent):
    """None for what is sent stands for zeros."""
    found = {path: np.asarray(leaf) for path, leaf in flatten_struct(shown)}
    if sent is None:
        return not any(leaf.any() for leaf in found.values())
    wanted = {path: np.asarray(leaf) for path, leaf in flatten_struct(sent)}
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[path], leaf) and found[path].dtype == leaf.dtype for path, leaf in wanted.items()
    )


class Expected:
    """The rows of an env, from its ledger alone."""

    def __init__(self, agents, picks_entry):
        self.agents, self.picks_entry = agents, picks_entry
        self.seen, self.ended, self.joined = {}, set(), set()

    def after(self, entry: Entry) -> list[Row]:
        if entry.t == 0:
            self.seen, self.ended, self.joined = {}, set(), set()
        for agent in self.ended:
            self.seen[agent] = None
        self.seen |= {agent: self.picked(obs) for agent, obs in entry.observations.items()}
        self.joined |= set(entry.observations) | set(entry.ended)
        rows = []
        for agent in self.agents:
            ended = entry.ended.get(agent, "")
            if entry.end and not ended and agent in self.joined - self.ended:
                ended = entry.end
            if ended:
                self.ended.add(agent)
            is_active = agent in entry.observations and agent not in self.ended and not entry.end
            row = Row(self.seen.get(agent), is_active, entry.rewards.get(agent, 0.0), ended)
            row.mask = entry.masks.get(agent, []) if is_active else []
            rows.append(row)
        return rows

    def picked(self, observation):
        return (
            observation["seen"]
            if self.picks_entry and isinstance(observation, dict) and "action_mask" in observation
            else observation
        )


def check(shown: Row, wanted: Row, first: Row | None, where) -> None:
    """`first` is what the agent's next episode begins with, if it has begun in the same step."""
    assert shown.reward == np.float32(wanted.reward) or shown.reward == wanted.reward, where
    assert shown.ended == wanted.ended, where
    now = first or wanted
    assert shown.is_active == now.is_active, where
    if first is not None and wanted.ended:
        assert is_equal(shown.final, wanted.observation), where
    assert is_equal(shown.observation, now.observation), (where, shown.observation, now.observation)
    if shown.mask:
        assert shown.mask == (now.mask or [1] * len(shown.mask)), where


def drawn(space, n, masks, rng):
    """Actions for n rows that the masks allow."""
    space.seed(int(rng.integers(2**31)))
    if masks is None or not masks[0]:
        return [space.sample() for _ in range(n)]
    return [space.sample(mask=sample_mask(space, mask)) for mask in masks]


def sample_mask(space, mask):
    mask = np.array(mask, np.int8)
    if isinstance(space, gym.spaces.Discrete):
        return mask
    return tuple(np.split(mask, np.cumsum(space.nvec)[:-1]))


def stacked(actions):
    """Actions of all rows, nested like one of them."""
    if isinstance(actions[0], tuple):
        return tuple(stacked([each[k] for each in actions]) for k in range(len(actions[0])))
    return np.array(actions)


def options_of(cls):
    return {"max_steps": cls.limit} if cls.limit else {}


@EACH_FACE
@pytest.mark.parametrize("world", TAKEN)
def test_rows_equal_the_ledger(name, world, rng):
    make, resets_at_once = FACES[name]
    cls = WORLDS[world]
    if (name, world) == ("torchrl", "actions of two parts"):
        with pytest.raises(ConfigError, match="TensorDictEnv supports Discrete"):
            make(cls)
        return
    face = make(cls, **options_of(cls))
    ledgers = [env.unwrapped.ledger for env in face.rows.envs]
    agents, n = face.rows.agents, len(face.rows.agents)
    expected = [Expected(agents, picks_entry=name in NEEDS) for _ in ledgers]
    n_read = [0] * len(ledgers)
    shown, sent, active = face.reset(), None, None
    for t in range(N_STEPS):
        for env_index, ledger in enumerate(ledgers):
            entry, n_read[env_index] = ledger[n_read[env_index]], n_read[env_index] + 1
            wanted = expected[env_index].after(entry)
            firsts = [None] * n
            if entry.end and resets_at_once:
                firsts = expected[env_index].after(ledger[n_read[env_index]])
                n_read[env_index] += 1
            assert n_read[env_index] == len(ledger)
            own = shown[env_index * n : env_index * n + n]
            if sent is not None and entry.t:
                acted = {
                    agent: sent[env_index * n + place] for place, agent in enumerate(agents) if agent in entry.actions
                }
                assert set(entry.actions) == {
                    agent for agent, was in zip(agents, active[env_index], strict=True) if was
                }
                for agent, action in acted.items():
                    assert is_equal(entry.actions[agent], action), (t, env_index, agent)
            for agent, row, of_agent, first in zip(agents, own, wanted, firsts, strict=True):
                check(row, of_agent, first, (t, env_index, agent, entry))
        active = np.array([row.is_active for row in shown]).reshape(-1, n)
        sent = drawn(face.rows.action_space, len(shown), [row.mask for row in shown], rng)
        shown = face.step(stacked(sent))
    face.envs.close()


@EACH_FACE
@pytest.mark.parametrize("world", REFUSED)
def test_later_lives_and_unequal_spaces_are_errors(name, world):
    make, _ = FACES[name]

    def play():
        face = make(WORLDS[world])
        face.reset()
        for _ in range(20):
            face.step(stacked([face.rows.action_space.sample()] * len(face.rows)))

    with pytest.raises((ConfigError, FinishedAgentError), match=REFUSED[world]):
        play()


IN_WORKERS = ("some wait, some act", "death before a limit", "masks in observations", "actions of two parts")


@pytest.mark.slow
@pytest.mark.parametrize("world", params([name for name in TAKEN if name != "ids are enum members"], IN_WORKERS))
def test_worker_processes_change_nothing(world):
    cls = WORLDS[world]
    here, there = (AgentVectorEnv(cls, 3, num_env_workers=n, **options_of(cls)) for n in (None, 2))
    shown = [each.reset(seed=4) for each in (here, there)]
    for _ in range(40):
        assert_same(*shown)
        rng = np.random.default_rng(0)
        masks = here._rows.action_masks().astype(int).tolist()
        actions = stacked(drawn(here.single_action_space, here.num_envs, masks, rng))
        shown = [each.step(actions) for each in (here, there)]
    here.close()
    there.close()
