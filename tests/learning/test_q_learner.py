"""QLearner against plain loops and autograd; QMixer against its formula."""

import copy
import math
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.differences import assert_same
from support.interrupts import interrupt_lines, lines_of
from support.scripted import Step, scripted
from torch import nn

import fastmarl
from fastmarl.batches import aligned
from fastmarl.core.native._ppo import PPOGradient
from fastmarl.core.spaces.structs import map_struct
from fastmarl.errors import BatchError, ConfigError, ModuleOutputError
from fastmarl.learning import QLearner, QMixer, TeamReplay, dense_nets
from fastmarl.modules import DefaultRLModule, EpsilonGreedyRLModule

N_AGENTS, N_ACTIONS, N_OBS = 3, 4, 5
VECTOR = gym.spaces.Box(-9, 9, (N_OBS,), np.float32)
MASKED = gym.spaces.Dict({"obs": VECTOR, "action_mask": gym.spaces.MultiBinary(N_ACTIONS)})
IMAGE = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)


class Own(fastmarl.modules.RLModule):
    """Action values of a user's class, with a constant that a gradient does not show, and a layer of no use."""

    def setup(self):
        self.first, self.last, self.unused = nn.Linear(N_OBS, 7), nn.Linear(7, N_ACTIONS), nn.Linear(2, 2)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.last(torch.relu(self.first(batch["obs"])))}


class Shifted(Own):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": super()._forward(batch)["action_dist_inputs"] + 5.0}


MODULES = {
    "tanh": (EpsilonGreedyRLModule, VECTOR, {"fcnet_hiddens": [8, 8]}),
    "no hidden layer": (EpsilonGreedyRLModule, VECTOR, {"fcnet_hiddens": []}),
    "wide": (DefaultRLModule, VECTOR, {"fcnet_hiddens": [70, 9], "fcnet_activation": "silu"}),
    "with a value head": (DefaultRLModule, VECTOR, {"fcnet_hiddens": [8], "vf_share_layers": False}),
    "masks in observations": (EpsilonGreedyRLModule, MASKED, {"fcnet_hiddens": [8], "fcnet_activation": "relu"}),
    "lstm": (EpsilonGreedyRLModule, VECTOR, {"fcnet_hiddens": [6], "use_lstm": True, "lstm_cell_size": 7}),
    "gru": (EpsilonGreedyRLModule, MASKED, {"fcnet_hiddens": [6], "use_gru": True, "gru_cell_size": 7}),
    "own": (Own, VECTOR, {}),
    "shifted": (Shifted, VECTOR, {}),
    "convolutions": (EpsilonGreedyRLModule, IMAGE, {"fcnet_hiddens": [8]}),
}
BY_AUTOGRAD = ("shifted", "convolutions")


def module_of(name):
    kind, space, config = MODULES[name]
    torch.manual_seed(0)
    return kind(
        observation_space=space,
        action_space=gym.spaces.Discrete(N_ACTIONS),
        model_config=config,
        inference_only=name != "with a value head",
    )


def batch_of(space, *, n=40, length=4, mask=False, seed=0):
    """Return rows with everything that may happen: agents that don't take part, ends, sequences that are shorter."""
    rng = np.random.default_rng(seed)
    steps = (n, length + 1, N_AGENTS)

    def legal():
        found = rng.random((*steps, N_ACTIONS)) < 0.6
        found[..., 0] |= ~found.any(-1)
        return found

    vectors = rng.normal(size=(*steps, N_OBS)).astype(np.float32)
    if space is IMAGE:
        vectors = rng.integers(0, 256, (*steps, *IMAGE.shape), np.uint8)
    counts = np.arange(length) < rng.integers(1, length + 1, n)[:, None]
    is_last = counts & ~np.pad(counts, ((0, 0), (0, 1)))[:, 1:]
    terminateds = is_last & (rng.random((n, 1)) < 0.5)
    active = (rng.random((n, length, N_AGENTS)) < 0.7) & counts[..., None]
    new_active = (rng.random((n, length, N_AGENTS)) < 0.7) & (counts & ~terminateds)[..., None]
    new_active[:, :-1][is_last[:, :-1] == 0] = active[:, 1:][is_last[:, :-1] == 0]
    observations = {"obs": vectors, "action_mask": legal()} if space is MASKED else vectors
    masks = legal() if mask else observations["action_mask"] if space is MASKED else np.ones((*steps, N_ACTIONS), bool)
    actions = (rng.random(masks[:, :-1].shape) * masks[:, :-1]).argmax(-1)
    return {
        "obs": observations,
        "actions": actions.astype(np.int32),
        "rewards": 3 * rng.normal(size=counts.shape) * counts,
        "active": active,
        "new_active": new_active,
        "terminateds": terminateds,
        "loss_mask": counts,
        "further": ["of no use"],
        **({"action_mask": masks} if mask else {}),
    }


def learner_of(name, mixer=None, **options):
    module = module_of(name)
    torch.manual_seed(1)
    mixer = mixer and mixer()
    return QLearner(module, mixer, **{"max_grad_norm": None, **options})


def mixer_of(name):
    return lambda: QMixer(N_AGENTS, N_AGENTS * gym.spaces.flatdim(MODULES[name][1]), 6, 5)


def gradients_of(learner):
    return {
        name: None if each.grad is None else each.grad.clone()
        for part in (learner.module, learner.mixer or nn.Module())
        for name, each in part.named_parameters()
    }


@pytest.mark.parametrize("has_mixer", [False, True], ids=["sum", "mixer"])
@pytest.mark.parametrize(
    ("name", "mask"),
    [*((name, False) for name in MODULES), *((name, True) for name in MODULES if MODULES[name][1] is not MASKED)],
)
def test_compiled_gradients_equal_those_of_autograd(name, mask, has_mixer):
    mixer, batch = mixer_of(name) if has_mixer else None, batch_of(MODULES[name][1], mask=mask)
    ours, theirs = learner_of(name, mixer), learner_of(name, mixer, compiled=False)
    for _ in range(2):
        stats = [learner.update(batch) for learner in (ours, theirs)]
        assert stats[0] == pytest.approx(stats[1], rel=1e-4)
        assert stats[0]["grad_norm"] > 0
        one, two = gradients_of(ours), gradients_of(theirs)
        size = max(float(each.abs().max()) for each in two.values())
        for key, of in one.items():
            torch.testing.assert_close(of, two[key], rtol=1e-3, atol=1e-5 * size, msg=key)
    assert theirs.backend == "autograd: compiled is False"
    assert ours.backend == "compiled" if name not in BY_AUTOGRAD else ours.backend.startswith("autograd: "), (
        ours.backend
    )


@pytest.mark.parametrize("name", ["wide", "gru"])
def test_batches_that_are_too_large_for_one_block(name):
    batch, found = batch_of(MODULES[name][1], n=700), []
    for compiled in (True, False):
        learner = learner_of(name, compiled=compiled)
        found.append((learner.update(batch)["qf_loss"], learner.parameters.gradient.clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)


def test_compiled_outputs_that_are_off_are_not_used(monkeypatch):
    """Also if the gradient is right."""
    outputs = PPOGradient.outputs

    class Off(PPOGradient):
        def outputs(self, *args, **kwargs):
            return outputs(self, *args, **kwargs) + np.float32(0.1)

    monkeypatch.setattr(dense_nets, "PPOGradient", Off)
    learner = learner_of("tanh")
    learner.update(batch_of(VECTOR))
    assert learner.backend == "autograd: the compiled logits differ from the module's"


@pytest.mark.parametrize("mixer", [None, mixer_of("tanh")], ids=["sum", "mixer"])
def test_gradients_equal_those_of_the_whole_loss(mixer):
    learner, batch = learner_of("tanh", mixer, gamma=0.9), batch_of(VECTOR, mask=True)
    module, of_team = copy.deepcopy(learner.module), copy.deepcopy(learner.mixer)
    rows = {name: torch.as_tensor(column) for name, column in batch.items() if name != "further"}
    there = torch.zeros(rows["obs"].shape[:3], dtype=torch.bool)
    there[:, :-1] |= rows["active"]
    there[:, 1:] |= rows["new_active"]
    states = (rows["obs"] * there[..., None]).flatten(2)

    def team(values, states):
        return values.sum(-1) if of_team is None else of_team(values, states)

    values = module.forward_train({"obs": rows["obs"]})["action_dist_inputs"]
    with torch.no_grad():  # at first, the target network is the same
        best = values[:, 1:].masked_fill(~rows["action_mask"][:, 1:], -torch.inf).argmax(-1, keepdim=True)
        after = team(values[:, 1:].gather(-1, best).squeeze(-1) * rows["new_active"], states[:, 1:])
        targets = rows["rewards"].float() + 0.9 * after * ~rows["terminateds"]
    taken = values[:, :-1].gather(-1, rows["actions"].long()[..., None]).squeeze(-1) * rows["active"]
    counts = rows["loss_mask"]
    nn.functional.smooth_l1_loss(team(taken, states[:, :-1])[counts], targets[counts]).backward()
    learner.update(batch)
    for ours, theirs in ((learner.module, module), (learner.mixer, of_team)):
        for name, each in (theirs or nn.Module()).named_parameters():
            torch.testing.assert_close(ours.get_parameter(name).grad, each.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("td_error_loss_fn", ["huber", "mse"])
@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_updates_equal_plain_loops(lambda_, td_error_loss_fn):
    """Targets, team's values and loss, one number at a time."""
    options = {"gamma": 0.9, "lambda_": lambda_, "td_error_loss_fn": td_error_loss_fn}
    learner, batch = learner_of("tanh", **options), batch_of(VECTOR, mask=True)
    target = copy.deepcopy(learner.module)
    with torch.no_grad():
        for each in learner.target.parameters():
            each.add_(0.1 * torch.randn_like(each))
        target.load_state_dict(learner.target[0].state_dict())
        now, slow = (
            module.forward_train({"obs": torch.from_numpy(batch["obs"])})["action_dist_inputs"].double().numpy()
            for module in (learner.module, target)
        )
    total = team_total = 0.0
    for i in range(len(batch["obs"])):
        length, later_return = int(batch["loss_mask"][i].sum()), None
        for t in reversed(range(length)):
            after = team = 0.0
            for a in range(N_AGENTS):
                if batch["new_active"][i, t, a]:
                    legal = np.flatnonzero(batch["action_mask"][i, t + 1, a])
                    after += slow[i, t + 1, a, max(legal, key=lambda k, seen=now[i, t + 1, a]: seen[k])]
                if batch["active"][i, t, a]:
                    team += now[i, t, a, batch["actions"][i, t, a]]
            after = 0.0 if batch["terminateds"][i, t] else after
            later_return = after if later_return is None else (1 - lambda_) * after + lambda_ * later_return
            later_return = batch["rewards"][i, t] + 0.9 * later_return
            error = abs(team - later_return)
            is_square = td_error_loss_fn == "mse"
            total += error**2 if is_square else 0.5 * error**2 if error < 1 else error - 0.5
            team_total += team
    stats, n = learner.update(batch), batch["loss_mask"].sum()
    assert stats["qf_loss"] == pytest.approx(total / n, rel=1e-4)
    assert stats["qf_mean"] == pytest.approx(team_total / n, rel=1e-4)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_memory_begins_with_each_trajectory(name, compiled):
    """Against one pass of the module for each decision of each agent."""
    learner, batch = learner_of(name, gamma=0.9, td_error_loss_fn="mse", compiled=compiled), batch_of(MODULES[name][1])
    module, rng = copy.deepcopy(learner.module), np.random.default_rng(2)
    trajectory = batch["trajectory"] = (rng.random(batch["active"][:, :1].repeat(5, 1).shape) < 0.3).cumsum(1)
    there = np.pad(batch["active"], ((0, 0), (0, 1), (0, 0))) | np.pad(batch["new_active"], ((0, 0), (1, 0), (0, 0)))
    values = torch.zeros(*there.shape, N_ACTIONS)
    initial = {key: torch.as_tensor(leaf)[None] for key, leaf in module.get_initial_state().items()}
    for i, a in np.ndindex(len(there), N_AGENTS):
        former, state = None, initial
        for t in np.flatnonzero(there[i, :, a]):
            if trajectory[i, t, a] != former:
                former, state = trajectory[i, t, a], initial
            obs = map_struct(lambda leaf, at=(i, t, a): torch.from_numpy(leaf[at])[None, None], batch["obs"])
            outputs = module.forward_train({"obs": obs, "state_in": state})
            values[i, t, a], state = outputs["action_dist_inputs"][0, 0], outputs["state_out"]
    rows = {key: torch.as_tensor(batch[key]) for key in ("actions", "rewards", "active", "new_active", "terminateds")}
    best = values[:, 1:].max(-1).values.detach()  # at first, the target network is the same
    after = (best * rows["new_active"]).sum(-1) * ~rows["terminateds"]
    taken = values[:, :-1].gather(-1, rows["actions"].long()[..., None]).squeeze(-1) * rows["active"]
    counts = torch.from_numpy(batch["loss_mask"])
    loss = nn.functional.mse_loss(taken.sum(-1)[counts], (rows["rewards"].float() + 0.9 * after)[counts])
    loss.backward()
    stats = learner.update(batch)
    assert learner.backend == ("compiled" if compiled else "autograd: compiled is False")
    assert stats["qf_loss"] == pytest.approx(loss.item(), rel=1e-4)
    for key, each in module.named_parameters():
        torch.testing.assert_close(learner.module.get_parameter(key).grad, each.grad, rtol=1e-3, atol=1e-5, msg=key)


PHOENIX = ["ab", Step("ab", 1), Step("ab", 1), Step("ab", 1, truncated="b"), Step("a", 1), Step("ab", 1), Step("ab", 1),
           Step("ab", 1, terminated="b"), Step("a", 1), Step("ab", 1), Step("ab", 1, terminated="a"), Step("ab", 1),
           Step("ab", 1), Step("ab", 1, truncated=True)]  # fmt: skip


@pytest.mark.parametrize("calls", [[13], [5, 4, 4], [1] * 13])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_values_of_agents_that_respawn_are_those_that_the_runner_acted_upon(name, calls):
    _, _, model_config = MODULES[name]
    config = fastmarl.EnvRunnerConfig(
        env=scripted(PHOENIX, space=gym.spaces.Box(0, 20, (1,), np.float32)), respawn=True, model_config=model_config,
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=True),
    )  # fmt: skip
    replay, total = TeamReplay(100, respawn=True), 0.0
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for n in calls:
            chunks = runner.sample(num_timesteps=n)
            for batch in aligned(chunks, groups={"team": ["a", "b"]}, outputs=["action_dist_inputs"]).values():
                replay.add(batch)
                taken = np.take_along_axis(batch["action_dist_inputs"], batch["actions"][..., None], -1)
                total += taken[batch["active"]].sum()
        learner = QLearner(copy.deepcopy(runner.module["default_policy"]))
    stats = learner.update(replay.sample_episodes(1))
    assert stats["qf_mean"] == pytest.approx(total / 13, rel=1e-4)


@pytest.mark.parametrize("name", ["tanh", "gru"])
def test_rows_that_do_not_count_may_hold_anything(name):
    learner, other = (learner_of(name, lambda: QMixer(N_AGENTS, N_AGENTS * N_OBS)) for _ in range(2))
    batch = batch_of(MODULES[name][1])
    there = np.pad(batch["active"], ((0, 0), (0, 1), (0, 0))) | np.pad(batch["new_active"], ((0, 0), (1, 0), (0, 0)))
    bad = copy.deepcopy(batch)
    vectors = bad["obs"]["obs"] if name == "gru" else bad["obs"]
    vectors[~there] = np.nan
    bad["rewards"][~bad["loss_mask"]] = np.inf
    for each in (batch, bad):
        each["env_state"] = np.random.default_rng(1).normal(size=(40, 5, N_AGENTS * N_OBS))
    counts = np.pad(batch["loss_mask"], ((0, 0), (0, 1))) | np.pad(batch["loss_mask"], ((0, 0), (1, 0)))
    bad["env_state"][~counts] = np.nan
    for _ in range(3):
        assert learner.update(batch) == other.update(bad)
    assert_same(learner.module.state_dict(), other.module.state_dict())


def test_the_target_network_follows():
    learner, batch = learner_of("tanh", tau=0.25, target_network_update_freq=2), batch_of(VECTOR)
    before = copy.deepcopy(learner.target[0].state_dict())
    learner.update(batch)
    assert_same(learner.target[0].state_dict(), before)
    learner.update(batch)
    for name, newest in learner.module.state_dict().items():
        torch.testing.assert_close(learner.target[0].state_dict()[name], 0.75 * before[name] + 0.25 * newest)


@pytest.mark.parametrize("name", ["tanh", "gru"])
def test_a_learner_that_was_saved_goes_on(name):
    learner, batch = learner_of(name, mixer_of(name), target_network_update_freq=2), batch_of(MODULES[name][1])
    for _ in range(3):
        learner.update(batch)
    other = learner_of(name, mixer_of(name), target_network_update_freq=2)
    other.module.load_state_dict(learner.module.state_dict())
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for _ in range(3):
        assert learner.update(batch) == other.update(batch)
    assert_same(learner.state_dict(), other.state_dict())


@pytest.mark.parametrize("n_before", [0, 1], ids=["new", "used"])
@pytest.mark.parametrize("name", ["tanh", "gru"])
def test_interrupts(name, n_before):
    """At any line they leave the parameters before or after a step, and a learner that goes on."""
    batch = batch_of(MODULES[name][1], n=6)

    def make():
        learner = learner_of(name, mixer_of(name), lr=0.01)
        for _ in range(n_before):
            learner.update(batch)
        return learner

    whole = make()
    steps = [whole.parameters.detach().clone()]
    lines = lines_of(lambda: whole.update(batch))
    steps.append(whole.parameters.detach().clone())

    def try_line(interruption):
        learner = make()
        interruption.run(lambda: learner.update(batch))
        assert any(torch.equal(learner.parameters, step) for step in steps)
        learner.update(batch)
        assert learner.backend == "compiled"

    interrupt_lines(try_line, lines, np.random.default_rng(0), n_lines=30, may_miss=True)


def test_gradients_are_limited():
    learner, batch = learner_of("tanh", max_grad_norm=1e-3), batch_of(VECTOR)
    assert learner.update(batch)["grad_norm"] > 1e-2
    assert float(learner.parameters.gradient.norm()) == pytest.approx(1e-3, rel=1e-2)


def test_a_mixer_equals_its_formula():
    """Rashid et al. 2018, equations in section 4.1, and figure 2."""
    mixer = QMixer(2, 3, embed_dim=4, hypernet_dim=5)
    values, state = torch.tensor([0.3, -2.0]), torch.tensor([1.0, -0.5, 2.0])
    weights = {name: each.detach() for name, each in mixer.named_parameters()}
    first = weights["state_layer.weight"] @ state + weights["state_layer.bias"]
    of_weights, of_last, bias, of_bias = first.split([5, 5, 4, 4])

    def of_layer(name, x):
        return weights[f"{name}.weight"] @ x.clamp(min=0) + weights[f"{name}.bias"]

    matrix = of_layer("weights", of_weights).abs().reshape(2, 4)
    hidden = values[0] * matrix[0] + values[1] * matrix[1] + bias
    hidden = torch.tensor([x if x > 0 else math.exp(x) - 1 for x in hidden.tolist()])
    want = float(hidden @ of_layer("last_weights", of_last).abs() + of_layer("last_bias", of_bias))
    many = mixer(values.expand(6, 7, 2), state.expand(6, 7, 3))
    assert many.shape == (6, 7)
    torch.testing.assert_close(many, torch.full((6, 7), want), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"new_active": None}, "QLearner needs the columns ['new_active']"),
        ({"actions": np.zeros((40, 4), int)}, "'actions' [n, T, A] with at least one action, got shape (40, 4)"),
        ({"actions": np.full((40, 4, 3), 0.9)}, "expected integer 'actions', got torch.float32"),
        ({"actions": np.full((40, 4, 3), 4)}, "expected actions >= 0 and < 4, got 4 to 4"),
        ({"rewards": np.zeros((40, 5))}, "expected 'rewards' of shape (40, 4), got (40, 5)"),
        ({"active": np.ones((40, 4, 3))}, "expected a bool 'active', got torch.float32"),
        ({"obs": np.zeros((40, 4, 3, 5), "f4")}, "expected 'obs' of shape (40, 5, 3, '...'), got (40, 4, 3, 5) at ()"),
        ({"rewards": np.full((40, 4), np.nan)}, "the gradient norm is nan"),
        ({"loss_mask": np.zeros((40, 4), bool)}, "'loss_mask' masks out all decisions"),
        ({"trajectory": np.zeros((40, 4, 3), int)}, "expected 'trajectory' of shape (40, 5, 3), got (40, 4, 3)"),
        ({"trajectory": np.zeros((40, 5, 3))}, "expected integer 'trajectory', got torch.float32"),
    ],
)  # fmt: skip
def test_bad_batches(change, message):
    learner = learner_of("tanh")
    before = copy.deepcopy(learner.module.state_dict())
    batch = {name: column for name, column in {**batch_of(VECTOR), **change}.items() if column is not None}
    with pytest.raises(BatchError) as caught:
        learner.update(batch)
    assert message in str(caught.value)
    assert_same(learner.module.state_dict(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.1}, "gamma must be between 0 and 1, got 1.1"),
        ({"lambda_": -0.1}, "lambda_ must be between 0 and 1, got -0.1"),
        ({"tau": math.nan}, "tau must be between 0 and 1, got nan"),
        ({"target_network_update_freq": 0}, "target_network_update_freq must be at least 1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be >= 0, got -1.0"),
        ({"td_error_loss_fn": "l1"}, "td_error_loss_fn must be 'huber' or 'mse', got 'l1'"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ConfigError) as caught:
        learner_of("tanh", **options)
    assert message in str(caught.value)


class Unreduced(nn.Module):
    def forward(self, values, states):
        return values.sum(-1, keepdim=True)


class Few(Own):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": super()._forward(batch)["action_dist_inputs"][..., :2]}


@pytest.mark.parametrize("compiled", [True, False])
def test_outputs_of_another_shape(compiled):
    """torch would spread some of them."""
    learner = learner_of("tanh", Unreduced, compiled=compiled)
    with pytest.raises(ModuleOutputError, match=r"Unreduced.* shape \(40, 4\), got shape \(40, 4, 1\)"):
        learner.update(batch_of(VECTOR))
    module = Few(observation_space=VECTOR, action_space=gym.spaces.Discrete(N_ACTIONS))
    with pytest.raises(ModuleOutputError, match=r"Few.*needs 4 action values, got 2"):
        QLearner(module, compiled=compiled).update(batch_of(VECTOR))


class Tied(nn.Module):
    """A mixer with a layer of the module."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, values, states):
        return values.sum(-1) + self.layer(states).sum(-1)


def test_a_mixer_that_shares_a_layer_with_the_module():
    found = []
    for compiled in (True, False):
        module = module_of("no hidden layer")
        learner = QLearner(module, Tied(module.pi), compiled=compiled)
        learner.update(batch_of(VECTOR) | {"env_state": np.ones((40, 5, N_OBS))})
        found.append(learner.parameters.gradient.clone())
    torch.testing.assert_close(*found)


def test_nothing_flows_back_from_after_a_termination():
    learner = learner_of("tanh", gamma=1.0, lambda_=1.0, td_error_loss_fn="mse")
    for each in learner.module.parameters():
        each.data.zero_()
    flags = np.ones((1, 2, 1), bool)
    batch = {"obs": np.zeros((1, 3, 1, N_OBS), "f4"), "actions": np.zeros((1, 2, 1), int), "active": flags,
             "new_active": flags, "terminateds": flags[..., 0], "rewards": np.array([[0.0, 100.0]])}  # fmt: skip
    assert learner.update(batch)["qf_loss"] == 100**2 / 2


class Shifting(Own):
    """Subtracts a running mean, which is a buffer."""

    def setup(self):
        super().setup()
        self.register_buffer("mean", torch.zeros(N_OBS))

    def _forward(self, batch, **kwargs):
        return super()._forward({"obs": batch["obs"] - self.mean})


def test_the_target_network_takes_over_buffers():
    learner = QLearner(Shifting(observation_space=VECTOR, action_space=gym.spaces.Discrete(N_ACTIONS)), tau=0.5)
    learner.module.mean = torch.full((N_OBS,), 4.0)
    learner.update(batch_of(VECTOR))
    assert (learner.target[0].mean == 2).all()


def test_a_target_network_that_was_moved_is_an_error():
    learner = learner_of("tanh")
    learner.target.load_state_dict(copy.deepcopy(learner.target.state_dict()), assign=True)
    before = learner.parameters.detach().clone()
    with pytest.raises(ConfigError, match="no longer belongs to its module"):
        learner.update(batch_of(VECTOR))
    assert torch.equal(learner.parameters, before)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_frozen_module_with_a_mixer_that_learns(compiled):
    module = module_of("tanh").requires_grad_(False)
    learner = QLearner(module, mixer_of("tanh")(), compiled=compiled)
    before = copy.deepcopy(module.state_dict())
    assert learner.update(batch_of(VECTOR))["grad_norm"] > 0
    assert_same(module.state_dict(), before)


def test_a_module_that_can_not_be_copied():
    module = module_of("tanh")
    module.lock = threading.Lock()
    with pytest.raises(ConfigError, match="can't copy EpsilonGreedyRLModule for the target network"):
        QLearner(module)


def test_actions_must_be_discrete():
    module = DefaultRLModule(observation_space=VECTOR, action_space=VECTOR)
    with pytest.raises(ConfigError, match="QLearner needs a module with Discrete actions, got Box"):
        QLearner(module)
