"""ValueLearner against a plain loop in torch, and PPOLearner with batches of `columns()` and `sequences()`."""

import copy

import numpy as np
import pytest
import torch
from support.differences import assert_same
from support.ppo import make_batch, make_module
from torch import nn

import fastmarl
from fastmarl.batches import add_gae, columns, sequences
from fastmarl.errors import BatchError, ConfigError, ModuleOutputError
from fastmarl.learning import PPOLearner, ValueLearner, normalized, to_tensors

N = 700


class Own(nn.Module):
    """A class of a user, with a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(6, 9), nn.Linear(9, 1), nn.Linear(6, 1)

    def forward(self, obs):
        return self.last(torch.relu(self.first(obs)))


class OfParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_image, self.of_vector = nn.Conv2d(1, 2, 3), nn.Linear(6, 8)
        self.last = nn.Linear(16, 1)

    def forward(self, obs):
        image = self.of_image(obs["image"][:, None]).flatten(1)
        return self.last(torch.cat([image, self.of_vector(obs["vector"])], 1).tanh())


NETWORKS = {
    "layers": lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, 1)),
    "one layer": lambda: nn.Linear(6, 1),
    "own class": Own,
    "dict inputs": OfParts,
    "normalised": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)),
}
IN_TORCH = ("dict inputs", "normalised")


def batch_of(name, n=N):
    rng = np.random.default_rng(0)
    vector, image = rng.normal(size=(n, 6)).astype(np.float32), rng.normal(size=(n, 4, 4)).astype(np.float32)
    obs = {"vector": vector, "image": image} if name == "dict inputs" else vector
    return {"obs": obs, "value_targets": 3 * vector[:, 0] + vector[:, 1] ** 2, "agent_id": ["of no use"]}


def taken(obs, rows):
    return {key: each[rows] for key, each in obs.items()} if isinstance(obs, dict) else obs[rows]


def plain(network, batch, generator, *, lr, epochs, size, max_grad_norm, vf_clip=float("inf")):
    """Return the losses of all minibatches."""
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=lr, eps=1e-5), []
    obs = batch["obs"]
    obs = {key: torch.from_numpy(each) for key, each in obs.items()} if isinstance(obs, dict) else torch.from_numpy(obs)
    targets = torch.from_numpy(batch["value_targets"])
    mask = torch.from_numpy(batch.get("loss_mask", np.ones(len(targets), bool)))
    for _ in range(epochs):
        for rows in torch.randperm(len(targets), generator=generator).split(size):
            optimizer.zero_grad()
            rows = rows[mask[rows]]
            errors = network(taken(obs, rows))[:, 0] - targets[rows]
            losses.append(errors.square().clamp(max=vf_clip).mean())
            losses[-1].backward()
            nn.utils.clip_grad_norm_(network.parameters(), max_grad_norm)
            optimizer.step()
    return torch.stack(losses).detach()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("case", ["all rows", "some rows", "clipped"])
def test_updates_are_those_of_a_plain_loop(name, compiled, case):
    torch.manual_seed(1)
    network, batch, options = NETWORKS[name](), batch_of(name), {}
    if case == "some rows":
        batch["loss_mask"] = np.arange(N) % 3 > 0
        batch["value_targets"][~batch["loss_mask"]] = np.nan
    if case == "clipped":
        options["vf_clip"] = 2.0
    twin = copy.deepcopy(network)
    order, same_order = torch.Generator().manual_seed(2), torch.Generator().manual_seed(2)
    learner = ValueLearner(
        network, lr=3e-3, epochs=3, minibatch_size=150, max_grad_norm=1.0, generator=order, compiled=compiled, **options
    )
    before = copy.deepcopy(batch)
    stats = learner.update(batch)
    assert_same(batch, before)
    losses = plain(twin, batch, same_order, lr=3e-3, epochs=3, size=150, max_grad_norm=1.0, **options)
    assert (learner.backend == "compiled") == (compiled and name not in IN_TORCH), learner.backend
    assert stats["vf_loss"] == pytest.approx(losses.mean().item(), rel=1e-4)
    off = [(ours - theirs).abs() for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True)]
    assert torch.cat([each.flatten() for each in off]).mean() < 1e-5
    assert set(stats) == {"vf_loss", "vf_explained_var", "grad_norm"}


def test_repeated_updates_explain_the_targets():
    learner, batch = ValueLearner(NETWORKS["layers"](), lr=1e-2), batch_of("layers")
    first = learner.update(batch)
    for _ in range(30):
        last = learner.update(batch)
    assert last["vf_loss"] < 0.1 * first["vf_loss"] and last["vf_explained_var"] > 0.9


@pytest.mark.parametrize(("network", "change", "error", "message"), [
    (nn.Linear(6, 1), {"obs": None}, BatchError, r"needs the columns \['obs'\]"),
    (nn.Linear(6, 1), {"value_targets": None}, BatchError, r"needs the columns \['value_targets'\]"),
    (nn.Linear(6, 1), {"value_targets": np.zeros((N, 1))}, BatchError, r"'value_targets' \[n\], one for each row"),
    (nn.Linear(6, 1), {"value_targets": np.zeros(N - 1)}, BatchError, "699 on cpu at .'value_targets'"),
    (nn.Linear(6, 1), {"obs": np.zeros((0, 6), "f4"), "value_targets": np.zeros(0)}, BatchError, "with rows, got none"),
    (nn.Linear(6, 1), {"value_targets": np.full(N, np.inf)}, BatchError, "'value_targets' in row 0"),
    (nn.Linear(6, 1), {"loss_mask": np.ones(N)}, BatchError, "bool 'loss_mask'"),
    (nn.Linear(6, 2), {}, ModuleOutputError, r"expected values \[n, 1\], one for each row, got shape"),
    (nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), {}, ModuleOutputError, r"expected values \[n, 1\]"),
], ids=str)  # fmt: skip
def test_bad_networks_and_batches(network, change, error, message):
    learner = ValueLearner(network)
    batch = {name: each for name, each in (batch_of("layers") | change).items() if each is not None}
    with pytest.raises(error, match=message):
        learner.update(batch)


def test_networks_of_float64_stay_in_float64():
    batch, network = batch_of("layers"), NETWORKS["layers"]().double()
    learner = ValueLearner(network)
    stats = learner.update(batch | {"obs": torch.from_numpy(batch["obs"]).double()})
    assert learner.parameters.dtype == torch.float64 and stats["grad_norm"] > 0


def test_a_policy_is_refused():
    with pytest.raises(ConfigError, match="got the RLModule DefaultRLModule; use PPOLearner for RLModules"):
        ValueLearner(make_module())


def test_options_are_those_of_ppo_learner():
    with pytest.raises(TypeError, match="entropy_coeff"):
        ValueLearner(nn.Linear(6, 1), entropy_coeff=0.1)
    with pytest.raises(ConfigError, match="minibatch_size must be at least 1, got 0"):
        ValueLearner(nn.Linear(6, 1), minibatch_size=0).update(batch_of("layers"))


# Batches as they are.


def runner_of(**model_config):
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(
        env="fastmarl.lbforaging", env_config={"name": "Foraging-5x5-2p-1f-v3"}, num_envs_per_env_runner=4, seed=1,
        model_config={"fcnet_hiddens": [8], **model_config},
    ))  # fmt: skip


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("compiled", [True, False])
def test_ppo_learner_takes_arrays_and_ignores_what_it_does_not_use(memory, compiled):
    runner = runner_of(**({"use_lstm": True, "lstm_cell_size": 4} if memory else {}))
    module, episodes = runner.module["default_policy"], runner.sample(num_timesteps=200)
    batch = columns(episodes)["default_policy"]
    add_gae(batch, gamma=0.9, lambda_=0.9, last_values=np.zeros(len(batch["seq_lens"])))
    if memory:
        extra = {"default_policy": {name: batch[name] for name in ("advantages", "value_targets")}}
        batch = sequences(episodes, max_seq_len=10, extra_columns=extra)["default_policy"]
    names = [
        "obs",
        "actions",
        "action_logp",
        "advantages",
        "value_targets",
        *(["state_in", "loss_mask"] if memory else []),
    ]
    results = []
    for given in (batch, to_tensors(batch, names), batch | to_tensors(batch, ["obs"])):
        learner = PPOLearner(
            copy.deepcopy(module), lr=1e-2, compiled=compiled, generator=torch.Generator().manual_seed(0)
        )
        results.append((learner.update(given), learner.backend, learner.parameters.detach().numpy()))
    assert len(batch) > len(names) and results[0][1] == ("compiled" if compiled else "autograd: compiled is False")
    assert_same(results[1:], [results[0]] * 2)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_advantages_are_normalised_over_the_rows_that_count(compiled, masked):
    module = make_module()
    batch = make_batch(module)
    batch["advantages"] = 5 + 3 * batch["advantages"]
    if masked:
        batch["loss_mask"] = torch.arange(len(batch["advantages"])) % 4 > 0
        batch["advantages"][~batch["loss_mask"]] = torch.nan
    results = []
    for normalises in (True, False):
        given = batch if normalises else batch | {"advantages": normalized(batch["advantages"], batch.get("loss_mask"))}
        learner = PPOLearner(
            copy.deepcopy(module), normalize_advantages=normalises, compiled=compiled,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        results.append((learner.update(given), learner.parameters.detach().numpy()))
    assert_same(*results)
    batch["advantages"] = batch["advantages"][:, None]
    with pytest.raises(BatchError, match="one number for each row in 'advantages'"):
        PPOLearner(module, normalize_advantages=True).update(batch)
