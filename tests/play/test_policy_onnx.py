"""A policy as an ONNX graph: what onnxruntime answers is what the policy does."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.compare_actions import close
from support.exhaustive import params
from support.overheard import Wander
from support.policy_kinds import BOX, CHOICE, KINDS, overheard_runner
from support.short_episodes import Later, clock, make_runner

import fastmarl
from fastmarl.connectors import MeanStdFilter
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.errors import ConfigError

pytestmark = [pytest.mark.needs("onnx", "onnxscript", "onnxruntime"), pytest.mark.slow]
MAIN = "default_policy"
LOOK_BACK = ("an indicator", "frames", "previous", "own connector", "all, and memory")
IN_GRAPHS = [kind for kind in KINDS if not kind.startswith(LOOK_BACK)]
N = 100
KEPT = (  # each kind of space, mask and connector
    *("own memory", "masks of parts in infos", "filter beside masks of parts"),
    *("filter of nested, a tuple", "CNN, clipped"),
)


def session_of(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def drawn(space, rng):
    """N observations, and the inputs that they are."""
    space.seed(int(rng.integers(2**31)))
    observations = [space.sample() for _ in range(N)]
    for obs in observations:
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"][rng.integers(len(obs["action_mask"]))] = 1
            obs["action_mask"][[0, -1]] = 1  # one of each part
    return observations


def inputs_of(layout, observations):
    rows = [layout.leaves_of(obs) for obs in observations]
    return {
        ".".join(map(str, ("obs", *leaf.path))): np.stack([row[i] for row in rows]).astype(leaf.dtype)
        for i, leaf in enumerate(layout.leaves)
    }


def nested(space, outputs, row):
    layout = RowLayout(space)
    leaves = [outputs[".".join(map(str, ("action", *leaf.path)))][row] for leaf in layout.leaves]
    is_int = [isinstance(each, gym.spaces.Discrete) for each in leaf_spaces(space)]
    return layout.nest([int(leaf) if discrete else leaf for leaf, discrete in zip(leaves, is_int, strict=True)])


@pytest.mark.parametrize("kind", params(IN_GRAPHS, KEPT))
def test_a_graph_acts_as_the_policy(kind, tmp_path, monkeypatch):
    traces = []  # torch.onnx traces a second time, with bytecode analysis, if the first trace fixes the number of rows
    trace = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: traces.append(1) or trace(*args, **kwargs))
    rng = np.random.default_rng(5)
    runner, _ = overheard_runner(kind)
    policy = fastmarl.Policy.from_runner(runner)
    observation_space, action_space = policy.get_spaces()[MAIN]
    layout = policy.parts[MAIN].connectors.sent_layout
    masks = rng.integers(2, size=(N, 5 if kind == "masks of parts in infos" else 4)) if "infos" in kind else None
    if masks is not None:
        masks[:, [0, -1]] = 1
    session = session_of(policy.export_onnx(tmp_path / "policy.onnx", action_mask=masks is not None))
    assert len(traces) == 1
    names = [output.name for output in session.get_outputs()]
    observations = drawn(observation_space, rng)
    state = runner.module[MAIN].get_initial_state()
    states = {f"state_in.{'.'.join(path)}": np.asarray(leaf)[None] for path, leaf in flatten_struct(state)}
    at_once = N if not states else 1
    for first in range(0, N, at_once):
        inputs = inputs_of(layout, observations[first : first + at_once]) | states
        if masks is not None:
            inputs["action_mask"] = masks != 0
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        states = {name: outputs[name.replace("state_in", "state_out", 1)] for name in states}
        for row in range(at_once):
            mask = None if masks is None else masks[row]
            action = policy.act(observations[first + row], action_mask=mask)  # after the export, which leaves no trace
            answered = nested(action_space, outputs, row)
            assert close(action, answered, 1e-5), (first + row, action, answered)


def test_float64_is_normalised_before_it_is_rounded(tmp_path):
    runner = make_runner(MeanStdFilter(), env=clock, module=Later(), model_config={})
    runner.sample(num_episodes=1)
    session = session_of(fastmarl.Policy.from_runner(runner).export_onnx(tmp_path / "policy.onnx"))
    (actions,) = session.run(None, {"obs.seconds": 1.7e9 + np.array([[1480.0], [1520.0]])})
    assert actions.tolist() == [0, 1]  # the mean is at 1500


@pytest.mark.parametrize("kind", ["frames", "previous", "own connector"])
def test_connectors_that_look_back_are_no_part_of_a_graph(kind, tmp_path):
    runner, _ = overheard_runner(kind)
    policy = fastmarl.Policy.from_runner(runner)
    with pytest.raises(ConfigError, match=r"(FrameStacking|PrevActionsPrevRewards|Average) can't be part of an ONNX"):
        policy.export_onnx(tmp_path / "policy.onnx")


def test_policies_that_cannot_be_exported_are_errors(tmp_path, monkeypatch):
    class Looking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(5, 4)

        def forward(self, batch):
            if batch["obs"].sum().item() > 0:
                return {"action_dist_inputs": self.net(batch["obs"])}
            return {"action_dist_inputs": -self.net(batch["obs"])}

    config = fastmarl.EnvRunnerConfig(
        env=Wander,
        env_config={"observation_space": BOX, "action_space": CHOICE},
        policies={"looking": Looking(), "default": None},
        policy_mapping_fn=lambda agent_id, episode: "default",
    )
    policy = fastmarl.Policy.from_runner(fastmarl.MultiAgentEnvRunner(config))
    path = tmp_path / "policy.onnx"
    with pytest.raises(ConfigError, match=r"export_onnx\(\) needs a module_id, one of \['looking', 'default'\]"):
        policy.export_onnx(path)
    with pytest.raises(ConfigError, match="module_id='x' is not one of the modules"):
        policy.export_onnx(path, "x")
    with pytest.raises(ConfigError, match=r"torch.onnx can't export the module of class Looking"):
        policy.export_onnx(path, "looking")
    before = policy.act(np.ones(5, np.float32), module_id="default")
    policy.export_onnx(path, "default")
    assert policy.act(np.ones(5, np.float32), module_id="default") == before
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install onnx onnxscript "):
        policy.export_onnx(path, "default")


def test_separate_masks_need_discrete_actions(tmp_path):
    runner, _ = overheard_runner("normalised")
    with pytest.raises(ConfigError, match="action_mask=True needs Discrete or MultiDiscrete actions"):
        fastmarl.Policy.from_runner(runner).export_onnx(tmp_path / "policy.onnx", action_mask=True)


def test_inputs_or_outputs_of_the_same_name_are_errors(tmp_path):
    ambiguous = gym.spaces.Dict({"x": gym.spaces.Dict({"y": BOX}), "x.y": BOX})
    for i, spaces in enumerate(({"observation_space": ambiguous}, {"action_space": ambiguous})):
        env_config = {"observation_space": BOX, "action_space": BOX} | spaces
        with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=Wander, env_config=env_config)) as runner:
            policy = fastmarl.Policy.from_runner(runner)
        name = ("obs.x.y", "action.x.y")[i]
        with pytest.raises(ConfigError, match=f"two inputs or outputs of the graph have the name '{name}'"):
            policy.export_onnx(tmp_path / "policy.onnx")
