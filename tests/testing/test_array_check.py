"""check_env on batches that step in arrays: it finds nothing in good ones, and in each broken one what is broken."""

import re

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.testing import check_env


class Walk(ArrayEnv):
    """Two agents walk at random; "a" ends alone when it is far, everybody in env e after 5 + e steps."""

    action_space = gym.spaces.Discrete(3)
    low = np.float32(-99)

    def __init__(self, num_envs):
        seen = gym.spaces.Dict({"observation": gym.spaces.Box(self.low, 99, (2,), np.float32),
                                "action_mask": gym.spaces.Box(0, 1, (3,), np.int8)})  # fmt: skip
        super().__init__(num_envs, {"both": ["a", "b"]}, {"both": seen}, {"both": self.action_space})
        self.place, self.t = np.zeros((num_envs, 2)), np.zeros(num_envs, np.int64)
        self.left = np.zeros(num_envs, np.bool_)
        self.rngs = [np.random.default_rng() for _ in range(num_envs)]

    def reset(self, env_indices, out, *, seeds=None):
        for k, e in enumerate(env_indices):
            if seeds is not None:
                self.rngs[e] = np.random.default_rng(seeds[k])
            self.place[e] = self.rngs[e].uniform(-1, 1, 2)
        self.t[env_indices] = 0
        self.left[env_indices] = False
        self.observe(env_indices, out.groups["both"])

    def step(self, actions, out):
        both = out.groups["both"]
        assert (np.take_along_axis(self.mask(), actions["both"][..., None], -1)[..., 0] | (actions["both"] == 0)).all()
        self.t += 1
        self.place += 0.5 * (actions["both"] - 1)
        self.place += [rng.normal(size=2) for rng in self.rngs]
        self.observe(slice(None), both)
        both.rewards[:] = np.where(self.gone(), 0.0, self.place)
        both.terminated[:, 0] = ~self.left & (self.place[:, 0] > 1)
        self.left |= both.terminated[:, 0]
        out.truncated[:] = self.t == 5 + np.arange(self.num_envs)

    def gone(self):
        return np.stack([self.left, np.zeros_like(self.left)], 1)

    def mask(self):
        return np.stack([self.place < 2, self.place < 0, self.place > -2], -1)

    def observe(self, env_indices, both):
        both.obs["observation"][env_indices, :, 0] = self.place[env_indices]
        both.obs["observation"][env_indices, :, 1] = self.t[env_indices, None]
        both.obs["action_mask"][env_indices] = self.mask()[env_indices]


def after_step(change):
    class Broken(Walk):
        def step(self, actions, out):
            super().step(actions, out)
            change(self, out.groups["both"], out)

    return Broken


def after_reset(change):
    class Broken(Walk):
        def reset(self, env_indices, out, *, seeds=None):
            super().reset(env_indices, out, seeds=seeds)
            change(self, out.groups["both"], out, env_indices)

    return Broken


class HalfObservation(Walk):
    def observe(self, env_indices, both):
        super().observe(env_indices, both)
        both.obs["observation"].view(np.uint32)[self.t == 3, 1, 1] = 0xA5A5A5A5


class HalfMask(Walk):
    """Unwritten bytes can't be detected until they change."""

    def observe(self, env_indices, both):
        before = both.obs["action_mask"][..., 1].copy()
        super().observe(env_indices, both)
        both.obs["action_mask"][env_indices, :, 1] = before[env_indices] & 1

    def mask(self):
        return np.ones((self.num_envs, 2, 3), np.bool_)


class Outside(Walk):
    low = np.float32(-1.5)


class NotANumber(Walk):
    def observe(self, env_indices, both):
        super().observe(env_indices, both)
        both.obs["observation"][env_indices, :, 0] /= np.where(self.t[env_indices] == 2, np.nan, 1)[:, None]


class PaysTheDead(Walk):
    def gone(self):
        return np.zeros((self.num_envs, 2), np.bool_)


class IgnoresSeeds(Walk):
    def reset(self, env_indices, out, *, seeds=None):
        super().reset(env_indices, out)


class LeavesNoAgent(Walk):
    def step(self, actions, out):
        super().step(actions, out)
        out.groups["both"].terminated[:] = (self.t == 3)[:, None]
        out.groups["both"].rewards[self.t > 3] = 0


class RulesEverythingOut(Walk):
    def mask(self):
        return super().mask() & (self.t != 2)[:, None, None]

    def step(self, actions, out):
        actions["both"] *= (self.t != 2)[:, None]
        super().step(actions, out)


class Raises(Walk):
    def step(self, actions, out):
        raise ZeroDivisionError("no such wall")


SHOWS_THE_DEAD = after_step(lambda env, both, out: both.present.fill(True))
BROKEN = {  # name: (batch, kind of its problems, text)
    "half an observation": (HalfObservation, "unwritten",
                            r"episode 0, env step 3, agent 'b': env 0: observation\['observation'\] was not"),
    "half a mask": (HalfMask, "seed", "write complete observations"),
    "bounds": (Outside, "bounds", r"agent '.': env .: observation\['observation'\] has values from -"),
    "NaN": (NotANumber, "bounds", "env step 2, agent '.': env .: .* holds NaN"),
    "reward": (after_step(lambda env, both, out: both.rewards[1, 1:].fill(np.inf)), "reward",
               "env step 1, agent 'b': env 1: expected a finite reward, got inf"),
    "pays the dead": (PaysTheDead, "after the end", "agent 'a': env .: received a reward of .* after it had ended"),
    "shows the dead": (SHOWS_THE_DEAD, "after the end", "agent 'a': env .: is present after it had ended"),
    "replaces rewards": (after_step(lambda env, both, out: setattr(both, "rewards", env.place.astype(np.float32))),
                         "raised", r"cannot assign to field 'rewards'"),
    "replaces observations": (
        after_reset(lambda env, both, out, env_indices: both.obs.update(observation=env.place)), "replaced",
        r"reset\(\) replaced .*obs\['observation'\], .*\[3, 2, 2\], with float64 \[3, 2\]"),
    "keeps a view": (after_step(lambda env, both, out: setattr(env, "last", both.obs["observation"][0, :, 0])),
                     "kept", r"obs\['observation'\] or a view of it is kept"),
    "keeps all arrays": (after_reset(lambda env, both, out, env_indices: setattr(env, "out", out)), "kept",
                         "out.terminated or a view of it is kept"),
    "seeds": (IgnoresSeeds, "seed", r"env step 0: results changed although reset\(seeds=\[0, \.\.\.\]\) and the "
              "actions were the same"),
    "mask of zeros": (RulesEverythingOut, "mask", "its mask rules out all actions"),
    "info of a stranger": (after_step(lambda env, both, out: out.infos.extend([(0, "a", {"fine": 1}), (0, "c", {})])),
                           "info", r"got \(0, 'c', \{\}\)"),
    "raises": (Raises, "raised", r"step\(\) raised ZeroDivisionError\('no such wall'\) in .*test_array_check.py"),
}  # fmt: skip
ODD = {  # name: (batch, kind of its notes, text)
    "one generator": (
        after_reset(lambda env, both, out, env_indices: setattr(env, "rngs", [env.rngs[0]] * env.num_envs)),
        "neighbours", "changed when other envs of the batch took different actions and were reset"),
    "resets neighbours": (
        after_reset(lambda env, both, out, env_indices: env.place.__iadd__(0.01 * (len(env_indices) < env.num_envs))),
        "neighbours", "let reset.. change only the state of env_indices"),
    "other rows": (
        after_reset(lambda env, both, out, env_indices: np.copyto(
            both.obs["observation"], np.stack([env.place, np.tile(env.t[:, None], 2)], -1))),
        "other rows", "they are ignored"),
    "endless": (after_step(lambda env, both, out: out.truncated.fill(False)), "endless", "no episode ended"),
    "nobody left": (LeavesNoAgent, "nobody left", ""),
}  # fmt: skip


class TwoWheels(ArrayEnv):
    """Actions of two parts, with masks that change; refuses what they rule out."""

    def __init__(self, num_envs):
        seen = gym.spaces.Dict({"avail_actions": gym.spaces.MultiBinary(5), "t": gym.spaces.Discrete(9, start=3)})
        moves = gym.spaces.MultiDiscrete([3, 2], start=[5, 7])
        super().__init__(num_envs, {"all": ["x"]}, {"all": seen}, {"all": moves})
        self.t = np.zeros(num_envs, np.int64)

    def observe(self, out):
        legal = np.array([[0, 1, 1, 1, 0], [1, 0, 0, 0, 1], [1, 1, 0, 1, 1]])
        out.groups["all"].obs["avail_actions"][:, 0] = self.mask = legal[self.t % 3]
        out.groups["all"].obs["t"][:, 0] = 3 + self.t

    def reset(self, env_indices, out, *, seeds=None):
        self.t[env_indices] = 0
        self.observe(out)

    def step(self, actions, out):
        first, second = (actions["all"][:, 0] - [5, 7]).T
        assert np.take_along_axis(self.mask, np.stack([first, 3 + second], 1), 1).all()
        self.t += 1
        self.observe(out)
        out.terminated[:] = self.t == 8


def kinds(findings):
    return {finding.kind for finding in findings}


@pytest.mark.slow
def test_nothing_is_found_in_a_good_batch():
    for num_envs in (1, 2, 5):
        report = check_env(Walk(num_envs), steps=120)
        assert report.ok and not report.notes, str(report)
        assert (report.env, report.env_steps) == ("Walk", 120 * num_envs)
        assert report.agents == ("a", "b")
        assert report.episodes == sum(120 // (5 + e) for e in range(num_envs))
        assert 120 * num_envs < report.agent_steps < 240 * num_envs


@pytest.mark.slow
def test_masks_of_any_form_are_obeyed():
    report = check_env(TwoWheels(2))
    assert report.ok and report.agent_steps == 1000, str(report)


@pytest.mark.parametrize(
    "name", ["cart_pole", "simple_spread", "simple_tag", "gridworld", "lbforaging", "rware", "connect_four"]
)
def test_nothing_is_found_in_the_bundled_ones(name):
    steps = 500 if name == "rware" else 150  # all of them end episodes
    report = check_env(f"fastmarl.{name}", steps=steps)
    assert report.ok and not report.notes, str(report)
    assert report.env_steps == 4 * steps and report.episodes


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_batch_is_found_out(name):
    broken, kind, text = BROKEN[name]
    report = check_env(broken(3), steps=60)
    assert kinds(report.problems) == {kind}, str(report)
    assert any(re.search(text, str(problem)) for problem in report.problems), str(report)
    assert not kinds(report.notes) - {"endless"}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_batch_is_noted(name):
    odd, kind, text = ODD[name]
    report = check_env(odd(3), steps=60)
    assert report.ok, str(report)
    assert kinds(report.notes) == {kind}, str(report)
    assert all(re.search(text, note.text) for note in report.notes), str(report)


def test_late_rewards_and_returns_are_fine_if_the_config_allows_them():
    assert check_env(PaysTheDead(3), steps=60, late_rewards="drop").ok
    report = check_env(SHOWS_THE_DEAD(3), steps=60, respawn=True)
    assert report.ok and not report.notes, str(report)
