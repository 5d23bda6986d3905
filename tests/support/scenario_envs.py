"""Small episodes, each with one thing that is hard to record, and modules that act by the clock."""

import numpy as np
import torch

import fastmarl
from support.scripted import Says, Step, scripted

BOTH = ["a0", "a1"]
CLOCK = [*[Step(BOTH)] * 10, Step(BOTH, terminated=True)]
TURNS = [  # who acts at t receives t, the other one -0.5 in the same step
    Step(["a0"]),
    *(Step([f"a{t % 2}"], {f"a{(t - 1) % 2}": t, f"a{t % 2}": -0.5}) for t in range(1, 21)),
    Step(BOTH, {"a0": 21, "a1": -0.5}, terminated=True),
]
RESPAWN = [  # a1 ends at 3 and is back at 6
    Step(agents, infos={agent: {"t": t} for agent in agents}, terminated={3: ["a1"], 10: True}.get(t, ()))
    for t, agents in enumerate([*[BOTH] * 4, *[["a0"]] * 2, *[BOTH] * 5])
]
# a0 acts at every fifth step, a1 at all others
MIXED_CLOCKS = [Step(["a0"] if t % 5 == 0 else ["a1"], terminated=t == 40) for t in range(41)]
clock_env, respawn_env = scripted(CLOCK), scripted(RESPAWN)


class Echo(Says):
    """Acts 0, 1 or 2 by the clock."""

    def __init__(self):
        super().__init__(actions=lambda obs: obs[:, 0].long() % 3)


def runner_of(script=CLOCK, **options):
    """Make a runner whose envs play a script, and whose only module is Echo."""
    defaults = {"env": scripted(script), "policies": {"p": Echo()}}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**defaults | options))


class StepCounter(fastmarl.RLModule):
    """Its memory is how often an agent has acted; what it found there is recorded as "count"."""

    def get_initial_state(self):
        return {"h": np.zeros(2, np.float32), "nested": {"c": np.zeros((), np.float32)}}

    def _forward(self, batch, **kwargs):
        state = batch["state_in"]
        actions = batch["obs"][..., 0].to(torch.int64) % 3
        assert actions.shape == (len(state["h"]), 1), "observations of modules with memory have a time axis"
        return {
            "actions": actions,
            "count": torch.stack([state["h"][:, 1], state["nested"]["c"]], dim=-1)[:, None],
            "state_out": {"h": state["h"] + 1, "nested": {"c": state["nested"]["c"] + 1}},
        }
