"""Connector pieces such as users write that have a part in batches, of modules and of actions.

Those that are random have generators of their own. What they see goes on tape, with numbers for ids of episodes.

PYTEST_DONT_REWRITE: fastmarl looks at what the code of a piece reads, and pytest's asserts read all local variables.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from rllib.differential import tape

Batch = dict[str, Any]
BONUS = "bonus"


class Random(ConnectorV2):
    """Has a generator, which is its state."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rng = np.random.default_rng(5)

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"drawn": self.rng.bit_generator.state["state"]["state"] % 2**53}


class Noting(ConnectorV2):
    """Writes down all that it is given."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.ids: dict[str, int] = {}

    def number(self, value: Any) -> Any:
        """The value with numbers in the place of ids."""
        if isinstance(value, dict):
            return {self.number(key): self.number(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.number, value))
        is_id = isinstance(value, str) and len(value) >= 32
        return self.ids.setdefault(value, len(self.ids)) if is_id else value

    def note(self, batch: Batch, episodes: list[Any], explore: Any, shared_data: dict) -> None:
        for episode in episodes:
            self.number(episode.id_)
        seen = [
            [len(each), each.env_t, bool(each.is_done), repr(sorted(map(repr, each.agent_ids)))] for each in episodes
        ]
        frozen = (tape.freeze(_named(self.number(each))) for each in (batch, shared_data))
        tape.note("pieces", type(self).__name__, explore, tape.freeze(seen), *frozen)


def _named(value: Any) -> Any:
    """With ids of agents, which may be of any type, as text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _named(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(part) for part in value]
    is_frozen = isinstance(value, (np.ndarray, np.generic, torch.Tensor, float, bool, int)) or value is None
    return value if is_frozen else repr(value)


# Module-to-env.


class Sticky(Random):
    """Agents repeat their last action at times."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        by_id = {episode.id_: episode for episode in episodes}
        for (episode_id, agent_id, _), items in batch[Columns.ACTIONS].items():
            part = by_id[episode_id].agent_episodes[agent_id]
            if len(part) and self.rng.random() < 0.4:
                items[0] = part.get_actions(-1)
        return batch


class Epsilon(Random):
    """Agents do at times what their space gives, whose numbers have another dtype than the module's."""

    def recompute_output_action_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        self.spaces = deepcopy(input_action_space)
        self.spaces.seed(9)
        return input_action_space

    def __call__(self, *, batch: Batch, explore: bool, **kwargs: Any) -> Batch:
        for key in list(batch[Columns.ACTIONS]) if explore else ():
            if self.rng.random() < 0.3:
                batch[Columns.ACTIONS][key] = [self.spaces[key[1]].sample()]
        return batch


class Overrides(ConnectorV2):
    """Where it stands, actions are those of modules, by columns."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        for outputs in batch.values():
            outputs[Columns.ACTIONS] = outputs[Columns.ACTIONS] * 0
        return batch


class NoisyLogits(Random):
    """Writes into what the modules have said, and puts something beside it."""

    def __call__(self, *, batch: Batch, explore: bool, **kwargs: Any) -> Batch:
        for outputs in batch.values():
            logits = outputs.get(Columns.ACTION_DIST_INPUTS)
            if explore and logits is not None:
                logits += torch.from_numpy(self.rng.normal(size=logits.shape).astype(np.float32))
                outputs["noise_seen"] = logits.reshape(len(logits), -1).sum(1)
        return batch


class OwnActions(ConnectorV2):
    """Leaves nothing to RLlib's GetActions."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        for outputs in batch.values():
            logits = outputs.pop(Columns.ACTION_DIST_INPUTS)
            outputs[Columns.ACTIONS] = logits.argmax(-1)
        return batch


class AddsNotes(ConnectorV2):
    """Adds a column for the record, in parts."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        batch["note"] = {key: [{"n": np.float32(i), "all": np.arange(2)}] for i, key in enumerate(batch["actions"])}
        return batch


class ForEnv(ConnectorV2):
    """Envs get something else than what is recorded."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        actions = batch.setdefault(Columns.ACTIONS_FOR_ENV, dict(batch[Columns.ACTIONS]))
        for key in actions:
            actions[key] = [tree.map_structure(lambda part: part * 0, actions[key][0])]
        return batch


class ForEnvLast(ConnectorV2):
    """Stands behind all others, and changes the order of agents, too."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        actions = batch.get(Columns.ACTIONS_FOR_ENV, batch[Columns.ACTIONS])
        batch[Columns.ACTIONS_FOR_ENV] = [
            {agent: tree.map_structure(lambda part: part * 0, of_env[agent]) for agent in reversed(of_env)}
            for of_env in actions
        ]
        return batch


class NotingToEnv(Noting):
    """Also keeps something in episodes."""

    def __call__(self, *, batch: Batch, episodes: Any, explore: Any, shared_data: Any, **kwargs: Any) -> Batch:
        self.note(batch, episodes, explore, shared_data)
        shared_data["acted"] = shared_data.get("acted", 0) + 1
        for episode in episodes:
            episode.custom_data["acted"] = episode.custom_data.get("acted", 0) + 1
        return batch


class ReadsObservations(ConnectorV2):
    """Looks at whole episodes, and writes an observation and a reward there."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        for episode in episodes:
            for agent_id, newest in episode.get_observations(-1).items() if episode.is_reset else ():
                part = episode.agent_episodes[agent_id]
                tape.note("pieces", "reads", repr(agent_id), tape.freeze([newest, part.get_rewards()]))
                if len(part) % 3 == 1:
                    part.set_observations(new_data=newest * 0, at_indices=-1)
        return batch


# Env-to-module.


class AddsBonus(ConnectorV2):
    """A column that modules read, of an item for each agent, which depends on its last reward."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        for part in self.single_agent_episode_iterator(episodes):
            reward = np.sum(part.get_rewards(-1)) if len(part) else 0.0
            item = np.array([reward, len(part)], np.float64)
            self.add_n_batch_items(batch, BONUS, [item], 1, part)
        return batch


class AddsBonusOfAll(ConnectorV2):
    """For all agents, also such that have not stepped; with a batch axis; and a second column, of numbers."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        for part in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.add_n_batch_items(batch, BONUS, np.full((1, 2), len(part), np.float32), 1, part)
            self.add_batch_item(batch, "age", part.t, part)
        return batch


class AddsObservations(ConnectorV2):
    """Takes the place of RLlib's default piece; it halves them."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        for part in self.single_agent_episode_iterator(episodes):
            newest = part.get_observations(-1)
            self.add_batch_item(batch, Columns.OBS, (newest * 0.5).astype(newest.dtype), part)
        return batch


class NotingToModule(Noting):
    """At any place; shares something."""

    def __call__(self, *, batch: Batch, episodes: Any, explore: Any, shared_data: Any, **kwargs: Any) -> Batch:
        self.note(batch, episodes, explore, shared_data)
        shared_data["passed"] = shared_data.get("passed", 0) + 1
        return batch


class BonusLast(ConnectorV2):
    """Adds the column where batches are tensors by module, and writes into observations."""

    def __call__(self, *, rl_module: Any, batch: Batch, **kwargs: Any) -> Batch:
        for module_id, columns in batch.items():
            assert module_id in rl_module
            newest = tree.flatten(columns[Columns.OBS])[0]
            if newest.is_floating_point():
                newest += 0.25
            columns[BONUS] = newest.reshape(*newest.shape[: 1 + rl_module[module_id].is_stateful()], -1)[..., :2] * 2
        return batch


TO_MODULE = {
    "bonus": AddsBonus,
    "bonus of all": AddsBonusOfAll,
    "own observations": AddsObservations,
    "noting": NotingToModule,
    "bonus last": BonusLast,
}
TO_ENV = {
    "sticky": Sticky,
    "epsilon": Epsilon,
    "notes": AddsNotes,
    "for env": ForEnv,
    "noting": NotingToEnv,
    "reads observations": ReadsObservations,
    "logits": NoisyLogits,
    "own actions": OwnActions,
    "overrides": Overrides,
    "for env, last": ForEnvLast,
}
PLACES = {"logits": 0, "own actions": 0, "overrides": 1, "for env, last": 7}
"""Before which of RLlib's default module-to-env pieces a piece has to stand; behind all of them: 7."""
USUAL_PLACE = 5  # RLlib's
