"""Derives the content that chunks must have from the logs of envs, in plain lists and dicts.

It shares no code with fastmarl, nor with the models of it in tests/support, and needs no run of RLlib: so it covers
the cases, too, in which RLlib is wrong (docs/differences.md).
"""

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.utils.spaces.space_utils import clip_action, get_base_struct_from_space, unsquash_action
from rllib.differential.runs import Call, Case, GetMetrics, Make, Run, Sample
from rllib.differential.worlds import World

Agent = Hashable
_events: list[tuple] = []


class WitnessedWorld(World):
    """A world that logs all its results and actions."""

    def reset(self, **kwargs: Any) -> tuple[dict, dict]:
        answer = self._said("failed", (), super().reset, **kwargs)
        _events.append(("reset", self.number, *copy.deepcopy(answer)))
        return answer

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        sent = copy.deepcopy(actions)
        answer = self._said("failed", sent, super().step, actions)
        _events.append(("step", self.number, sent, *copy.deepcopy(answer)))
        return answer

    def _said(self, kind: str, sent: Any, ask: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return ask(*args, **kwargs)
        except Exception:
            _events.append((kind, self.number, sent))
            raise


@dataclass(frozen=True)
class Marked:
    """A call whose begin and end are written down, with what its module is."""

    call: Call

    def on(self, runner: Any) -> Any:
        weights = runner.get_state(components="rl_module")
        _events.append(("call", self.call, weights.get("weights_seq_no"), copy.deepcopy(runner.module)))
        returned = self.call.on(runner)
        _events.append(("returned", self.call, returned))
        return returned


def witnessed(case: Case) -> Case:
    """The case with envs and calls that are written down from now on."""
    _events.clear()
    calls: Any = tuple(map(Marked, case.calls))
    return replace(case, setup=replace(case.setup, env=WitnessedWorld), calls=calls)


@dataclass(frozen=True, eq=False)
class Called:
    """The log of a call, with the `module` as it was then."""

    seq_no: int | None
    module: Any
    is_random: bool
    explores: bool


@dataclass
class Trajectory:
    """One agent's stay in an episode."""

    obs: list[Any]
    infos: list[Any]
    actions: list[Any] = field(default_factory=list)
    calls: list["Called"] = field(default_factory=list)
    """In which the actions were made."""
    rewards: list[float] = field(default_factory=list)
    """Of the transition under way, too; when it has ended, there are as many as observations but one."""
    flags: tuple[bool, bool] | None = None

    @property
    def n(self) -> int:
        """Transitions that are complete."""
        return len(self.obs) - 1

    @property
    def waits(self) -> bool:
        return len(self.actions) > self.n


@dataclass
class Story:
    """A running episode.

    Attributes:
        began: env step with which its chunk begins.
        n_before: each agent's transitions then.
        early: rewards that agents received in the chunk before their first observation.
    """

    agents: dict[Agent, Trajectory] = field(default_factory=dict)
    ended: dict[Agent, Trajectory] = field(default_factory=dict)
    t: int = 0
    began: int = 0
    n_before: dict[Agent, int] = field(default_factory=dict)
    early: dict[Agent, float] = field(default_factory=dict)
    flags: tuple[bool, bool] = (False, False)
    ids: set[str] = field(default_factory=set)
    part_ids: dict[Agent, str] = field(default_factory=dict)


class Witness:
    """Goes through what was written down.

    Args:
        case: the case.
        counts: whether metrics count the episodes that were returned (20).

    Attributes:
        findings: lines about what was returned and should not have been.
    """

    def __init__(self, case: Case, counts: bool):
        self._case, self._counts = case, counts
        self._spaces = World({"rules": case.setup.rules})
        self._stories: dict[int, Story | None] = {}
        self._fresh: set[int] = set()  # envs not heard of in this call
        self._over: list[Story] = []
        self._ids: dict[str, Story] = {}
        self._n_episodes = 0  # returned, finished, since they were counted last
        self._lost = 0.0  # rewards that belong to no transition, since the last report
        self.findings: list[str] = []

    def hear(self) -> None:
        """Everything that was written down. What envs do while they are made is the business of RLlib's checker."""
        samples = False
        for kind, *what in _events:
            if kind == "call":
                samples = isinstance(what[0], Sample)
            if samples or kind in ("call", "returned"):
                getattr(self, f"_{kind}")(*what)

    # Calls.

    def _call(self, call: Call, seq_no: int | None, module: Any) -> None:
        explores = getattr(call, "explore", None)
        explores = self._case.setup.explore if explores is None else explores
        self._called = Called(seq_no, module, bool(getattr(call, "random_actions", None)), explores)
        self._over = []
        if isinstance(call, Make) and call.what == "env":
            self._stories.clear()
        self._fresh = set(self._stories)

    def _returned(self, call: Call, returned: Any) -> None:
        if isinstance(call, GetMetrics) and self._counts:
            self.findings += [f"witness: {call}{line}" for line in self._wrong_numbers(returned)]
        if not isinstance(call, Sample):
            return
        n = call.num_episodes
        if n is None and call.num_timesteps is None and self._case.setup.batch_mode == "complete_episodes":
            n = self._case.setup.num_envs
        expected = self._over if n is None else self._over[:n]
        self._n_episodes += len(expected)
        running = [story for _, story in sorted(self._stories.items()) if story is not None]
        if n is None:
            expected = expected + [story for story in running if story.t > story.began]
        else:
            self._stories = dict.fromkeys(self._stories)
        if len(expected) != len(returned):
            self.findings.append(f"{call}: {len(expected)} chunks expected, {len(returned)} returned")
            return
        for i, (story, chunk) in enumerate(zip(expected, returned, strict=True)):
            self.findings += [f"witness: {call}[{i}]{line}" for line in self._wrong(story, chunk)]
        for story in running:
            story.began = story.t
            story.n_before = {agent: trajectory.n for agent, trajectory in story.agents.items()}
            story.early, story.ended = {}, {}

    def _wrong_numbers(self, report: Any) -> Iterator[str]:
        """In metrics: what RLlib counts in another way (20), or not at all (60)."""
        n, lost, self._n_episodes, self._lost = self._n_episodes, self._lost, 0, 0.0
        for name in ("num_episodes", "num_episodes_lifetime"):  # since the last report, both: Algorithms add them up
            yield from _unequal(f".{name}", n, report[name].peek() if name in report else 0)
        reported = report["unattributed_reward"].peek() if "unattributed_reward" in report else 0.0
        yield from _unlike(".unattributed_reward", lost, reported)

    # What envs say.

    def _reset(self, env: int, obs: dict, infos: dict) -> None:
        story = self._stories.get(env)
        if story is not None and env not in self._fresh:
            # RLlib had ended the episode before the env did: to the one that it began then, this is a step.
            self._take(env, story, {}, obs, {}, {}, {}, infos)
            return
        self._stories[env] = self._begun(obs, infos)

    def _begun(self, obs: dict, infos: dict) -> Story | None:
        story = Story()
        for agent, value in obs.items():
            story.agents[agent] = Trajectory([value], [infos.get(agent) or {}])
        return story if obs else None

    def _step(self, env: int, actions: dict, obs: dict, rewards: dict, terms: dict, truncs: dict, infos: dict) -> None:
        self._fresh.discard(env)
        story = self._stories.get(env)
        if story is None:  # the episode was over for RLlib, not for the env
            self._stories[env] = self._begun(obs, infos)
        else:
            self._take(env, story, actions, obs, rewards, terms, truncs, infos)

    def _failed(self, env: int, actions: Any) -> None:
        self._stories.pop(env, None)

    def _take(
        self, env: int, story: Story, actions: dict, obs: dict, rewards: dict, terms: dict, truncs: dict, infos: dict
    ) -> None:
        story.t += 1
        live = {agent: one for agent, one in story.agents.items() if one.flags is None}
        to_act = {agent for agent, one in live.items() if not one.waits}
        if actions.keys() != to_act:
            self.findings.append(f"witness: env {env} was sent actions of {[*actions]} in place of {to_act}")
        for agent, action in actions.items():
            live[agent].actions.append(action)
            live[agent].calls.append(self._called)
            live[agent].rewards.append(0.0)
        self._pay(story, live, rewards)
        own = {agent: (bool(terms.get(agent)), bool(truncs.get(agent))) for agent in {*live, *obs, *story.early}}
        over = bool(terms.get("__all__")), bool(truncs.get("__all__"))
        if all(any(own[agent]) for agent in live):
            over = (True, over[1])
        for agent, one in live.items():
            ends = any(own[agent]) or any(over)
            if agent in obs or ends:
                one.obs.append(obs.get(agent, one.obs[-1]))
                one.infos.append((infos.get(agent) or {}) if agent in obs else one.infos[-1])
            if ends:
                one.flags = (own[agent][0] or over[0], own[agent][1] or over[1])
                story.early.pop(agent, None)
        for agent, value in obs.items():
            if agent not in story.agents and not any(own[agent]) and not any(over):
                story.agents[agent] = Trajectory([value], [infos.get(agent) or {}])
        named = {*actions, *obs, *rewards, *terms, *truncs} if any(over) else set()
        for agent in [agent for agent in story.early if any(own.get(agent, ())) or agent in named]:
            del story.early[agent]
        if any(over):
            story.flags = over
            self._over.append(story)
            self._stories[env] = None

    def _pay(self, story: Story, live: dict[Agent, Trajectory], rewards: dict) -> None:
        for agent, reward in rewards.items():
            if agent in live:
                live[agent].rewards[-1] += float(reward or 0.0)
            elif agent not in story.agents:
                self._lost += float(reward or 0.0)
                story.early[agent] = story.early.get(agent, 0.0) + float(reward or 0.0)

    # What was returned.

    def _wrong(self, story: Story, chunk: Any) -> Iterator[str]:
        if self._ids.setdefault(chunk.id_, story) is not story or story.ids - {chunk.id_}:
            yield ": id of another episode"
        story.ids.add(chunk.id_)
        yield from _unequal(".env_t_started", story.began, chunk.env_t_started)
        yield from _unequal(".env_t", story.t, chunk.env_t)
        yield from _unequal(".flags", story.flags, (bool(chunk.is_terminated), bool(chunk.is_truncated)))
        new = {agent: one.n - story.n_before.get(agent, 0) for agent, one in story.agents.items()}
        acted = {agent for agent, n in new.items() if n}
        yield from _unequal(".agents", acted, {*chunk.agent_episodes})
        waiting = {agent for agent, one in story.agents.items() if one.waits}
        yield from _unequal(".waiting", waiting, {*chunk._hanging_actions_end})
        for agent in acted & chunk.agent_episodes.keys():
            one, part = story.agents[agent], chunk.agent_episodes[agent]
            yield from _unequal(f"[{agent!r}].id_", story.part_ids.setdefault(agent, part.id_), part.id_)
            for line in self._wrong_part(agent, one, part, story.n_before.get(agent, 0)):
                yield f"[{agent!r}]{line}"
        total = sum(
            sum(story.agents[agent].rewards[story.n_before.get(agent, 0) : story.agents[agent].n]) for agent in acted
        )
        yield from _unlike(".get_return()", total, chunk.get_return())
        hanging = sum(story.agents[agent].rewards[-1] for agent in waiting)
        yield from _unlike(".get_return(True)", total + hanging + sum(story.early.values()), chunk.get_return(True))

    def _wrong_part(self, agent: Agent, one: Trajectory, part: Any, begin: int) -> Iterator[str]:
        lookback = part.observations.lookback
        first = begin - lookback
        yield from _unequal(".t", (begin, one.n), (part.t_started, part.t))
        yield from _unequal(".flags", one.flags or (False, False), (bool(part.is_terminated), bool(part.is_truncated)))
        if first < 0 or len(part) != one.n - begin:
            yield f": {len(part)} steps after {lookback} of lookback, {one.n - begin} after at most {begin} expected"
            return
        columns = {"actions": part.actions, "rewards": part.rewards, "infos": part.infos, **part.extra_model_outputs}
        for name, column in columns.items():
            yield from _unequal(f".{name}.lookback", lookback, column.lookback)
            yield from _unequal(f"len({name})", len(part) + (name == "infos"), len(column))
        yield from _unequal("'s number of observations", one.n + 1 - first, part.observations.len_incl_lookback())
        if {*self._case.setup.connectors} <= {"flatten", "frames"}:  # the others record what only RLlib's run can tell
            for i, obs in enumerate(one.obs[first:]):
                yield from _unlike(f".observations {i}", obs, _row(part.observations, i))
        for i, info in enumerate(one.infos[first:]):
            yield from _unequal(f".infos {i}", repr(info), repr(part.infos.data[i]))
        for i in range(one.n - first):
            yield from _unlike(f".rewards {i}", one.rewards[first + i], part.rewards.data[i])
            called = one.calls[first + i]
            action = self._for_env(agent, _row(part.actions, i), called.is_random)
            yield from _unlike(f".actions {i}", one.actions[first + i], action)
            if "weights_seq_no" in part.extra_model_outputs and not called.is_random:
                seq_no = part.extra_model_outputs["weights_seq_no"].data[i]
                yield from _unequal(f".weights_seq_no {i}", called.seq_no, int(seq_no))
        if part.observations.finalized:
            yield from self._wrong_outputs(part, one.calls[first : one.n])

    def _wrong_outputs(self, part: Any, calls: list[Called]) -> Iterator[str]:
        """Modules without a state and with a distribution must say the same again when they are asked."""
        kind = self._case.setup.modules[part.module_id]
        has_state = kind == "memory" or (kind == "default" and "use_lstm" in self._case.setup.model_config)
        if has_state or kind not in ("default", "any", "noting", "extras"):
            return
        if lacking := {"action_dist_inputs", "action_logp"} - part.extra_model_outputs.keys():
            yield from (f": no {name}" for name in lacking if not all(called.is_random for called in calls))
            return
        for called in dict.fromkeys(calls):
            rows = [i for i, one in enumerate(calls) if one is called]
            if called.is_random:
                continue
            module = called.module[part.module_id]
            obs = tree.map_structure(lambda leaf, rows=rows: _tensor(leaf[rows]), part.observations.data)
            with torch.no_grad():
                want = module.forward_inference({"obs": obs})["action_dist_inputs"]
            inputs = torch.as_tensor(part.extra_model_outputs["action_dist_inputs"].data[rows])
            yield from _unlike(".action_dist_inputs", want.numpy(), inputs.numpy())
            actions = part.actions.data
            if isinstance(actions, np.ndarray):
                yield from self._wrong_actions(module, called, inputs, torch.as_tensor(actions[rows]), part, rows)

    def _wrong_actions(
        self, module: Any, called: Called, inputs: Any, actions: Any, part: Any, rows: list[int]
    ) -> Iterator[str]:
        if called.explores:
            want = module.get_exploration_action_dist_cls().from_logits(inputs).logp(actions)
            yield from _unlike(".action_logp", want.numpy(), part.extra_model_outputs["action_logp"].data[rows])
        else:
            best = module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic().sample()
            yield from _unlike(".actions", best.numpy(), actions.numpy())

    def _for_env(self, agent: Agent, action: Any, is_random: bool) -> Any:
        """Return the action that the env must have got for an action of the module."""
        setup = self._case.setup
        struct = get_base_struct_from_space(self._spaces.action_spaces[agent])
        if is_random or not (setup.normalize or setup.clip):
            return action
        return (unsquash_action if setup.normalize else clip_action)(copy.deepcopy(action), struct)


def _row(column: Any, i: int) -> Any:
    """Item i of a column, lookback included, in list form or as arrays."""
    return tree.map_structure(lambda leaf: leaf[i], column.data) if column.finalized else column.data[i]


def _tensor(leaf: Any) -> torch.Tensor:
    """As modules get it: floats are float32."""
    tensor = torch.as_tensor(np.ascontiguousarray(leaf))
    return tensor.float() if tensor.is_floating_point() else tensor


def _unequal(what: str, want: Any, got: Any) -> Iterator[str]:
    if want != got:
        yield f"{what}: {want} expected, {got} found"


def _unlike(what: str, want: Any, got: Any) -> Iterator[str]:
    """Yield a line if numbers differ, regardless of their types: a column of float32 holds rounded float64."""
    pair = [tree.flatten(value) for value in (want, got)]
    same = len(pair[0]) == len(pair[1]) and all(
        np.size(a) == np.size(b) and np.allclose(np.ravel(a), np.ravel(b), rtol=1e-4, atol=1e-4, equal_nan=True)
        for a, b in zip(*pair, strict=True)
    )
    if not same:
        yield f"{what}: {want!r} expected, {got!r} found"


def findings(case: Case, run: Run) -> list[str]:
    """Return the defects of a run of the witnessed case, other than raised errors."""
    if run.error is not None:
        return []
    witness = Witness(case, counts=bool(run.is_accelerated))
    witness.hear()
    return witness.findings
