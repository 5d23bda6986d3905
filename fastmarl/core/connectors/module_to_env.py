"""Applies user-defined connectors to module outputs, ordered relative to the default connectors of RLlib."""

from collections.abc import Sequence

import numpy as np

from fastmarl.core.connectors.base import GetActions, ModuleToEnvConnector, NormalizeAndClipActions, Rows
from fastmarl.core.connectors.rllib_pieces import class_name
from fastmarl.core.errors import ConfigError, ConnectorError, shown
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.store.block import Key, leaves_of, name_of, nested_outputs

PLACES = (GetActions, NormalizeAndClipActions)
CHECKED = (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.ACTIONS, Columns.ACTIONS_FOR_ENV)
Outputs = dict[Key, np.ndarray]


class OutputConnectors:
    """Output connectors of a module, grouped by stage: before actions, after actions, and after clipping.

    Args:
        module_id: Id of the module.
        connectors: In order of application. A missing `GetActions` is inserted first, and a missing
            `NormalizeAndClipActions` last, as in the default pipeline of RLlib.

    Attributes:
        before_actions, after_actions, after_clipping: Connectors that change the logits, the recorded actions, and the
            actions sent to envs, respectively.

    Raises:
        ConfigError: If the connectors are in the wrong order.
    """

    def __init__(self, module_id: str, connectors: Sequence[ModuleToEnvConnector]):
        self._module_id = module_id
        kinds = [type(connector) for connector in connectors]
        found = [kind for kind in kinds if kind in PLACES]
        if found != [kind for kind in PLACES if kind in found]:
            raise ConfigError(f"module_to_env_connector of module {module_id!r}: GetActions and "
                              f"NormalizeAndClipActions may each occur once, in this order, got "
                              f"{[kind.__name__ for kind in kinds]}")  # fmt: skip
        clips_at = kinds.index(NormalizeAndClipActions) if NormalizeAndClipActions in kinds else len(kinds)
        acts_at = kinds.index(GetActions) if GetActions in kinds else -1
        self.before_actions = list(connectors[: max(acts_at, 0)])
        self.after_actions = list(connectors[acts_at + 1 : clips_at])
        self.after_clipping = list(connectors[clips_at + 1 :])

    def __bool__(self) -> bool:
        return bool(self.before_actions or self.after_actions or self.after_clipping)

    def run(self, connectors: Sequence[ModuleToEnvConnector], outputs: Outputs, rows: Rows) -> Outputs:
        """Pass the outputs of a module through these connectors in order, and return new arrays.

        Raises:
            ConnectorError: If one of them does not return outputs for these rows.
        """
        if not connectors:
            return outputs
        # Connectors change arrays in place; these must not share memory with the module or the next tick.
        outputs = {key: array.copy() for key, array in outputs.items()}
        for connector in connectors:
            name = class_name(connector)
            made = connector(nested_outputs(outputs), rows)
            if not isinstance(made, dict):
                raise ConnectorError(self._module_id, name, f"expected a dict of outputs, got {shown(made)}")
            before, outputs = outputs, leaves_of(made)
            for key, array in outputs.items():
                if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc" or len(array) != len(rows):
                    got = shown(array) if not isinstance(array, np.ndarray) else f"{array.dtype} {array.shape}"
                    problem = f"expected output {key!r} to be a numeric array with {len(rows)} rows, got {got}"
                    raise ConnectorError(self._module_id, name, problem)
                if name_of(key) in CHECKED and array.dtype.kind == "f" and np.isnan(array).any():
                    raise ConnectorError(self._module_id, name, f"expected numbers in output {key!r}, got NaN")
                if key in before and array.dtype.kind == before[key].dtype.kind == "f":
                    outputs[key] = array.astype(before[key].dtype, copy=False)
        return outputs


def has_actions(outputs: Outputs) -> bool:
    """Return True if the outputs of a module include actions."""
    return any(name_of(key) == Columns.ACTIONS for key in outputs)
