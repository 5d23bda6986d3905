"""`check_env()` for authors of environments, which plays some episodes and reports all findings together."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastmarl.core.envs.adapters import ADAPTERS, as_multi_agent_env
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.form import name_of
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.testing.array_check import BatchPlay
from fastmarl.testing.play import Play, UnplayableError
from fastmarl.testing.report import Findings, Report

BATCH_SIZE = 4  # number of envs if the check creates the batch itself


@exits_as_errors()
def check_env(env: Any, env_config: dict | None = None, *, steps: int = 500, seed: int = 0,
              late_rewards: str = "error", respawn: bool = False) -> Report:  # fmt: skip
    """Play an env or a batch with seeded random actions and report everything wrong or unusual about it.

    Args:
        env: Any value of `EnvRunnerConfig(env=...)`, or an env that is not in use elsewhere. It is closed at the end.
        env_config: Config passed to the function that creates the env.
        steps: Number of env steps (for a batch, per env). The first 100 are then repeated with the same seed and
            actions, and once more while past observations are overwritten or, in a batch, while every other env acts
            differently. If the check creates the env itself, it also repeats them in a second env.
        seed: Seed of the first reset() and of the actions. Actions obey the masks in observations and infos.
        late_rewards: As in `EnvRunnerConfig`. Unless it is "error", finished agents may receive rewards.
        respawn: As in `EnvRunnerConfig`. If True, agents may be observed again after they have finished.

    Returns:
        A report; problems are not raised. In a test, write `assert report.ok, report`. `ok` is False if there are
        `problems`; `notes` lists findings that are allowed but often unintended.

    Raises:
        EnvCheckError: If `env` is not a multi-agent environment at all. Errors of the first constructor call also
            propagate.
    """
    is_object = not isinstance(env, str) and not inspect.isclass(env)
    is_instance = is_object and (hasattr(env, "step") or any(adapter.adapts(env) for adapter in ADAPTERS))
    make = None if is_instance else _maker(env, env_config or {})
    env = as_multi_agent_env(env) if make is None else make()
    findings = Findings()
    kind = BatchPlay if isinstance(env, ArrayEnv) else Play
    play = kind(env, findings, seed, late_rewards != "error", respawn)
    with suppress(UnplayableError):
        play.play(steps)
        if isinstance(play, Play) and make is not None:
            _compare(play, make, findings)
    _close(env, findings)
    return Report(
        env=name_of(env),
        problems=list(findings.problems.values()),
        notes=list(findings.notes.values()),
        agents=tuple(play.observed),
        env_steps=play.env_steps,
        agent_steps=play.agent_steps,
        episodes=play.episodes,
        seeds_each_episode=getattr(env, "seeds_each_episode", True),
    )


def _maker(env: Any, env_config: dict) -> Callable[[], Any]:
    """Return a function that creates an env as a runner does, with a new context that the constructor may modify."""
    create = env_creator(env)
    return lambda: as_multi_agent_env(create(EnvContext(env_config, 0, num_envs=BATCH_SIZE)))


def _compare(play: Play, make: Callable[[], Any], findings: Findings) -> None:
    try:
        with exits_as_errors():
            other = make()
    except Exception as error:
        findings.env_t = None
        text = f"a second env could not be created in the same way while this one exists: {error!r:.200}"
        findings.note("another", f"{text}; a runner with several envs needs this")
        return
    play.compare(other)
    _close(other, findings)


def _close(env: Any, findings: Findings) -> None:
    if hasattr(env, "close"):
        findings.env_t = None
        try:
            with exits_as_errors():
                env.close()
        except Exception as error:
            findings.problem("close", f"close() raised {error!r}")
