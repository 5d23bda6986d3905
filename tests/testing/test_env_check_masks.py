"""check_env on masks: legal actions only are given, and what is wrong with a mask is named by agent, tick and key."""

import re

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.core.envs.values import random_action
from fastmarl.testing import CountingEnv
from fastmarl.testing.check import check_env

LENGTH = 10
ODD_AT = 3  # the env step whose mask is odd
PLACES = ("action_mask", "avail_actions", "info")
SPACES = {"discrete": gym.spaces.Discrete(3, start=5), "multi": gym.spaces.MultiDiscrete([3, 2], start=[5, 1])}


class MaskedEnv(CountingEnv):
    """Only action t % 3 is legal at env step t, which the observation or the info of agent_1 says.

    Args:
        env_config: `place` of the mask, `space` of the actions, `odd_mask` to give at ODD_AT, `info`: more to put into
            infos, `mask_space`: another than there should be, or None for none.
    """

    def __init__(self, env_config):
        super().__init__(2, LENGTH)
        self.place, self.space = env_config.get("place", "info"), SPACES[env_config.get("space", "discrete")]
        self.config = env_config
        self.n = int(np.sum(getattr(self.space, "nvec", 3)))
        parts = {"t": gym.spaces.Discrete(99)}
        mask_space = env_config.get("mask_space", gym.spaces.Box(-np.inf, np.inf, (self.n,), np.float32))
        if self.place != "info" and mask_space is not None:
            parts[self.place] = mask_space
        self.observation_spaces["agent_1"] = gym.spaces.Dict(parts)
        self.action_spaces["agent_1"] = env_config.get("action_space", self.space)

    def _mask(self):
        if self.env_t == ODD_AT and "odd_mask" in self.config:
            return self.config["odd_mask"]
        legal = np.eye(3)[self.env_t % 3]
        return np.append(legal, [1, 0][: self.n - 3]).astype(np.float32)

    def _observations(self):
        masks = {} if self.place == "info" else {self.place: self._mask()}
        return {**super()._observations(), "agent_1": {"t": self.env_t, **masks}}

    def _infos(self):
        masks = {"action_mask": self._mask()} if self.place == "info" else {}
        return {"agent_1": {**masks, **self.config.get("info", {})}}

    def reset(self, *, seed=None, options=None):
        return super().reset()[0], self._infos()

    def step(self, actions):
        if self.env_t != ODD_AT and not self.config.keys() - {"place", "space"}:
            expected = self.env_t % 3 + 5
            assert np.array_equal(actions["agent_1"], [expected, 1] if self.n > 3 else expected), "an illegal action"
        return *super().step(actions)[:4], self._infos()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("place", PLACES)
def test_only_legal_actions_are_given(place, space):
    report = check_env(MaskedEnv, {"place": place, "space": space})
    assert report.ok, str(report)
    assert not report.notes, str(report)


def zeros(n):
    return np.zeros(n, np.float32)


ZERO = "rules out all actions of an observed agent, which has to act"
PROBLEMS = {
    # name: (env_config, kind, env step, text)
    "size in info": ({"odd_mask": [1, 1]}, "mask", ODD_AT, r"info\['action_mask'\] has 2 entries, expected 3"),
    "size in info, parts": ({"odd_mask": [[1, 1], [1, 1]], "space": "multi"}, "mask", ODD_AT,
                            r"info\['action_mask'\] has 4 entries, expected 5"),
    "empty": ({"odd_mask": []}, "mask", ODD_AT, "has 0 entries, expected 3"),
    "nothing": ({"odd_mask": None}, "mask", ODD_AT, "has 1 entries, expected 3"),
    "texts": ({"odd_mask": ["yes", "no", "no"]}, "mask", ODD_AT, r"info\['action_mask'\] contains 'yes', expected"),
    "size in observation": ({"place": "action_mask", "odd_mask": zeros(2)}, "observation", ODD_AT,
                            r"observation\['action_mask'\]: expected float32 of shape \(3,\), got float32 of shape"),
    "size in space": ({"place": "action_mask", "mask_space": gym.spaces.MultiBinary(4)}, "mask", None,
                      r"'action_mask' of .*MultiBinary\(4\), has 4 entries, but Discrete\(3, start=5\) needs 3"),
    "size of SMAC's": ({"place": "avail_actions", "mask_space": gym.spaces.MultiBinary(2)}, "mask", None,
                       r"'avail_actions' of .*MultiBinary\(2\), has 2 entries"),
    "not in space": ({"place": "action_mask", "mask_space": None}, "observation", 0,
                     r"expected a dict with the keys \['t'\], got the keys \['t', 'action_mask'\]"),
    "zeros in info": ({"odd_mask": zeros(3)}, "mask", ODD_AT, rf"info\['action_mask'\] {ZERO}"),
    "zeros": ({"place": "action_mask", "odd_mask": zeros(3)}, "mask", ODD_AT, rf"observation\['action_mask'\] {ZERO}"),
    "zeros of SMAC's": ({"place": "avail_actions", "odd_mask": zeros(3)}, "mask", ODD_AT,
                        rf"observation\['avail_actions'\] {ZERO}"),
    "zeros for a part": ({"odd_mask": [1, 1, 1, 0, 0], "space": "multi"}, "mask", ODD_AT,
                         rf"info\['action_mask'\] {ZERO}"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_problem_is_named_and_nothing_else(name):
    config, kind, env_t, text = PROBLEMS[name]
    report = check_env(MaskedEnv, config, steps=LENGTH)
    (problem,) = report.problems
    assert (problem.kind, problem.agent_id, problem.env_t) == (kind, "agent_1", env_t)
    assert re.search(text, problem.text), problem.text
    assert not report.notes, str(report)


NOTES = {
    "gaps": ({"odd_mask": Ellipsis}, ODD_AT, r"info['action_mask'] is present in some env steps but not in others"),
    "two places": ({"place": "action_mask", "info": {"action_mask": [1, 1, 1]}}, 0,
                   "info['action_mask'] differs from observation['action_mask'], which takes precedence"),
    "name": ({"place": "action_mask", "mask_space": None, "odd_mask": 0, "info": {"avail_actions": [1, 1, 1]}}, 0,
             "info['avail_actions'] is ignored; rename it to 'action_mask'"),
    "logits": ({"odd_mask": [1, -np.inf, -np.inf]}, ODD_AT, "info['action_mask'] contains -inf; 0 excludes a choice"),
    "no choices": ({"action_space": gym.spaces.Box(-1, 1, (3,))}, 0,
                   "info['action_mask'] is ignored: masks are not supported for Box"),
}  # fmt: skip


class OddlyMaskedEnv(MaskedEnv):
    """Where the odd mask is `...`, there is none; where it is 0, there is never one."""

    def _observations(self):
        return without_mask(super()._observations(), self.config)

    def _infos(self):
        return without_mask(super()._infos(), self.config)


def without_mask(parts, config):
    value = parts["agent_1"]
    mask = value.get("action_mask")
    if mask is Ellipsis or (mask is not None and config.get("odd_mask") == 0):
        value = {key: part for key, part in value.items() if key != "action_mask"}
    return {**parts, "agent_1": value}


@pytest.mark.parametrize("name", NOTES)
def test_odd_masks_are_noted_and_are_no_problems(name):
    config, env_t, text = NOTES[name]
    report = check_env(OddlyMaskedEnv, config, steps=LENGTH)
    (note,) = report.notes
    assert report.ok, str(report)
    assert (note.kind, note.agent_id, note.env_t) == ("mask", "agent_1", env_t)
    assert text in note.text


def test_ending_agents_may_have_a_mask_of_zeros():
    class Ending(MaskedEnv):
        def _mask(self):
            return zeros(3) if self.env_t == LENGTH else super()._mask()

    assert check_env(Ending, {"place": "action_mask"}).ok


def test_random_actions_reach_all_legal_choices_and_no_other():
    space = gym.spaces.MultiDiscrete([[3, 2], [2, 4]], start=[[0, 5], [0, 0]])
    space.seed(0)
    mask = ([1, 0, 1], (0, 1), [1, 1], np.array([0, 0, 1, 0], bool))
    actions = {tuple(np.ravel(random_action(space, mask))) for _ in range(50)}
    assert actions == {(a, 6, b, 2) for a in (0, 2) for b in (0, 1)}
    assert random_action(space, mask).dtype == space.dtype and random_action(space, mask).shape == (2, 2)


@pytest.mark.parametrize("mask", [[0, 0, 0], [1, 1], [], None, "abc"])
def test_random_actions_do_without_masks_that_do_not_fit(mask):
    space = gym.spaces.Discrete(3, start=5, seed=0)
    assert {random_action(space, mask) for _ in range(30)} == {5, 6, 7}
