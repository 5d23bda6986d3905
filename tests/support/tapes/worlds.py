"""Random worlds: envs, modules, options and calls of a runner, all from one seed."""

import random
from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from support.tapes.envs import Tape, TapedBatch, TapedEnv
from support.tapes.spaces import ACTIONS, OBSERVATIONS, leaf_spaces, leaves, number

AGENTS: tuple[Hashable, ...] = ("ant", "bee", "7", 7, -1, 2.5, ("wasp", 0), ("wasp", 1), frozenset({1}), b"fly")


class Echo(fastmarl.RLModule):
    """Outputs its observations: `seen`, one number of each.

    `weight` is its only parameter. With memory, it also outputs the number of observations that it remembers, and the
    sum of their numbers.
    """

    def setup(self):
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.draws = self.kwargs.get("draws", True)
        self.remembers = self.kwargs.get("remembers", False)

    def get_initial_state(self):
        return {"n": np.zeros((), np.int64), "of": {"sum": np.zeros((1,), np.float64)}} if self.remembers else {}

    def _forward(self, batch, **kwargs):
        obs = batch["obs"]
        items = {path: leaf.numpy() for path, leaf in leaves(obs)}
        state = batch.get("state_in")
        if state is not None:
            items = {path: leaf[:, 0] for path, leaf in items.items()}
        n = len(next(iter(items.values())))
        seen = np.array([number(tuple(leaf[i] for leaf in items.values())) for i in range(n)], np.float64)
        outputs: dict[str, Any] = {"seen": seen, "weight": np.full(n, self.weight.item(), np.float32)}
        outputs |= self._actions(seen)
        outputs = {key: _tensors(value) for key, value in outputs.items()}
        if state is not None:
            outputs = {key: _map(lambda leaf: leaf[:, None], value) for key, value in outputs.items()}
            total = state["of"]["sum"] + torch.from_numpy(seen)[:, None]
            outputs["state_out"] = {"n": state["n"] + 1, "of": {"sum": total}}
        return outputs

    def _actions(self, seen):
        if self.draws:
            logits = np.sin(seen[:, None] + np.arange(logits_of(self.action_space)))
            return {"action_dist_inputs": logits.astype(np.float32)}
        return {"actions": answer(self.action_space, seen)}


def logits_of(space: gym.Space) -> int:
    """How many numbers choose an action of this space."""
    sizes = {gym.spaces.Discrete: lambda s: int(s.n), gym.spaces.MultiDiscrete: lambda s: int(s.nvec.sum())}
    return sum(sizes.get(type(leaf), lambda s: 2 * s.shape[0])(leaf) for _, leaf in leaf_spaces(space))


def answer(space: gym.Space, seen: np.ndarray) -> Any:
    """An action for each number."""
    if isinstance(space, gym.spaces.Dict):
        return {key: answer(inner, seen) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(answer(inner, seen) for inner in space.spaces)
    whole = np.floor(seen).astype(np.int64)
    if isinstance(space, gym.spaces.Discrete):
        return whole % int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return whole[:, None] % space.nvec
    return (np.fmod(seen, 8)[:, None] / 8 * np.linspace(-1, 1, space.shape[0])).astype(np.float32)


def _map(fn: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(fn, item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_map(fn, item) for item in value)
    return fn(value)


def _tensors(value: Any) -> Any:
    return _map(torch.from_numpy, value)


class World:
    """Everything that one seed decides.

    Attributes:
        is_batch: envs step in arrays.
        tells_tape: infos["__common__"] has the number of the episode; else callbacks tell which is which.
        spoils: an env overwrites what it sent, and what it was sent, in the next step.
        is_odd: arrays lie in memory in odd ways.
        weights_seq_no: of the weights in force, for the envs to write down.
    """

    def __init__(self, seed: int):
        self.seed, rng = seed, random.Random(f"world {seed}")
        self.rng = rng
        self.num_envs = rng.choice((1, 1, 2, 3, 5))
        self.is_batch = rng.random() < 0.2
        self.is_async = not self.is_batch and rng.random() < 0.02
        self.num_splits = rng.randint(2, self.num_envs) if self.num_envs > 1 and rng.random() < 0.3 else 1
        self.respawn = not self.is_batch and rng.random() < 0.25
        self.late_rewards = rng.choice(("error", "drop", "accumulate"))
        self.count_steps_by = rng.choice(("env_steps", "env_steps", "agent_steps"))
        self.complete = rng.random() < 0.1
        self.drops = self.complete or rng.random() < 0.3
        self.first_agent_begins = self.count_steps_by == "agent_steps" or rng.random() < 0.8
        self.lengths = rng.choice(((1,), (1, 2, 3), (2, 6, 11), (17, 30), (5, 60)))
        self.fragment, self.lookback = rng.randint(1, 15), rng.choice((0, 1, 1, 3, 10))
        self.keep_float64, self.window = rng.random() < 0.5, rng.choice((1, 4, 100))
        self.spoils, self.is_odd = rng.random() < 0.5, rng.random() < 0.5
        self.declares, self.checks = rng.random() < 0.7, rng.random() < 0.5
        self.has_state, self.tells_tape = rng.random() < 0.2, rng.random() < 0.5
        if self.is_batch and self.drops:  # envs that rest are reset, too, without notice
            self.tells_tape = True
        self.scale = rng.choice((1.0, 1.0, 0.5, -2.0))
        self.clip = rng.choice((None, None, None, True, 3.0, (-1.0, 2.5)))
        self.weights_seq_no, self.explores, self.acted_at_random = 0, True, False
        self._make_agents()
        self.mapped: dict[tuple[str, Hashable], str] = {}
        self.starts: list[list[str]] = [[] for _ in range(self.num_envs)]

    def _make_agents(self) -> None:
        rng = self.rng
        kinds = rng.sample(sorted(OBSERVATIONS), rng.randint(1, 2))
        of_kind = {kind: (OBSERVATIONS[kind](), ACTIONS[rng.choice(sorted(ACTIONS))]()) for kind in kinds}
        self.agents = rng.sample(AGENTS, rng.randint(1, 6))
        self.kind_of = {agent: rng.choice(kinds) for agent in self.agents}
        self.spaces = {agent: of_kind[kind] for agent, kind in self.kind_of.items()}
        self.modules: dict[str, list[str]] = {
            kind: [f"{kind} {i}" for i in range(rng.choice((1, 1, 2)))]
            for kind in of_kind
            if kind in self.kind_of.values()
        }
        self.options = {
            module: {"draws": rng.random() < 0.6, "remembers": rng.random() < 0.3}
            for modules in self.modules.values()
            for module in modules
        }
        discrete = all(isinstance(action, gym.spaces.Discrete) and action.n == 5 for _, action in self.spaces.values())
        self.masks_in_infos = discrete and rng.random() < 0.3
        for options in self.options.values():
            options["draws"] |= self.masks_in_infos  # a module that acts by itself knows of no mask
        self.module_spaces = {module: of_kind[kind] for kind, modules in self.modules.items() for module in modules}

    def __repr__(self) -> str:
        return f"World({self.seed})"

    def recorded_reward(self, reward: float) -> float:
        """Apply `reward_scale` and `clip_rewards` to a reward."""
        low, high = self.clip if isinstance(self.clip, tuple) else (-(self.clip or np.inf), self.clip or np.inf)
        scaled = reward * self.scale
        return float(np.sign(scaled)) if self.clip is True else min(max(scaled, low), high)

    # What the runner is given.

    def make_env(self, context: Any) -> Any:
        if self.is_batch:
            is_whole = context.num_envs == self.num_envs
            return TapedBatch(
                self, list(range(context.vector_index, self.num_envs, 1 if is_whole else self.num_splits))
            )
        return TapedEnv(self, context.vector_index)

    def module_for(self, agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        key = (episode.id_, agent_id)
        assert key not in self.mapped, f"{agent_id!r} was mapped twice in one episode"
        self.mapped[key] = random.Random(repr(key)).choice(self.modules[self.kind_of[agent_id]])
        return self.mapped[key]

    def note_start(self, *, episode: Any, env_index: int, **kwargs: Any) -> None:
        self.starts[env_index].append(episode.id_)

    def config(self) -> fastmarl.EnvRunnerConfig:
        modules = {name: Echo(*spaces, **self.options[name]) for name, spaces in self.module_spaces.items()}
        options: dict[str, Any] = {}
        if self.is_async:
            options = {"gym_env_vectorize_mode": "async", "num_env_workers": 2, "env_worker_start_method": "fork"}
        if not self.tells_tape:
            options["callbacks_on_episode_start"] = self.note_start
        return fastmarl.EnvRunnerConfig(
            env=self.make_env,
            num_envs_per_env_runner=self.num_envs,
            worker_num_splits=self.num_splits,
            disable_env_checking=not self.checks,
            policies=modules,
            policy_mapping_fn=self.module_for,
            reward_scale=self.scale,
            clip_rewards=self.clip,
            rollout_fragment_length=self.fragment,
            batch_mode="complete_episodes" if self.complete else "truncate_episodes",
            count_steps_by=self.count_steps_by,
            keep_float64=self.keep_float64,
            episode_lookback_horizon=self.lookback,
            record_env_state=self.has_state,
            late_rewards=self.late_rewards,
            respawn=self.respawn,
            seed=self.seed,
            metrics_num_episodes_for_smoothing=self.window,
            **options,
        )

    def calls(self) -> list[dict[str, Any]]:
        """Arguments of each sample()."""
        rng, calls = self.rng, []
        for _ in range(rng.randint(2, 12)):
            call: dict[str, Any] = {}
            if self.drops and rng.random() < 0.4:
                call = rng.choice(
                    ({"num_episodes": rng.randint(1, 7)}, {"num_timesteps": rng.randint(0, 30), "force_reset": True})
                )
            elif rng.random() < 0.8 and not self.complete:
                call = {"num_timesteps": rng.choice((0, 1, 2, rng.randint(3, 40)))}
            if rng.random() < 0.2:
                call["explore"] = rng.random() < 0.5
            if rng.random() < 0.1:
                call["random_actions"] = True
            calls.append(call)
        return calls

    def tapes(self, runner: Any) -> list[list[Tape]]:
        """By env, all episodes that it has begun."""
        if self.is_batch:
            stories = {}
            for batch in runner.env.envs:
                for story in batch.stories:
                    stories[story.env_index] = story.tapes
            return [stories[i] for i in range(self.num_envs)]
        if self.is_async:
            return [env.call("tapes") for env in runner.env.envs]
        return [env.tapes() for env in runner.env.envs]
