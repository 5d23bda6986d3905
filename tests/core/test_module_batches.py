"""A module may do as it likes with its batch: the record has what it was given."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.differences import assert_same
from support.scripted import counting, scripted

import fastmarl
from fastmarl.connectors import FrameStacking, MeanStdFilter
from fastmarl.core.spaces.structs import flatten_struct

pytestmark = pytest.mark.filterwarnings("ignore:the observations of module .* have parts that are not arrays")

BOX = gym.spaces.Box(-9, 9, (3,), np.float32)
NESTED = gym.spaces.Dict(
    {
        "bytes": gym.spaces.Box(0, 255, (2, 2), np.uint8),
        "pair": gym.spaces.Tuple([gym.spaces.Discrete(5), gym.spaces.Box(-9, 9, (), np.float64)]),
        "text": gym.spaces.Text(3),
    }
)


def replaced(batch, leaves):
    batch["obs"] = None


def taken_out(batch, leaves):
    batch.pop("obs", None)


def emptied(batch, leaves):
    batch.clear()


def added(batch, leaves):
    batch["more"], batch[0] = batch.get("obs"), 1


def filled(batch, leaves):
    for leaf in leaves:
        leaf.fill_(7)


def filled_by_data(batch, leaves):
    for leaf in leaves:
        leaf.data.fill_(7)


def filled_by_numpy(batch, leaves):
    for leaf in leaves:
        leaf.numpy()[...] = 7


def resized(batch, leaves):
    for leaf in leaves:
        leaf.resize_(1).zero_()


def emptied_within(batch, leaves):
    for value in batch.values():
        if isinstance(value, dict):
            value.clear()


def text_filled(batch, leaves):
    for _, leaf in flatten_struct(batch):
        if isinstance(leaf, np.ndarray):
            leaf[...] = "!"


DICTS = (replaced, taken_out, emptied, added, emptied_within)
HOWS = (*DICTS, filled, filled_by_data, filled_by_numpy, resized, text_filled)


class Net(fastmarl.RLModule):
    """Acts by the sum of what it sees, and then changes its batch in the ways `model_config["hows"]`."""

    def get_initial_state(self):
        return {"h": np.ones(2, np.float32)} if self.model_config["memory"] else {}

    def _forward(self, batch, **kwargs):
        leaves = [leaf for _, leaf in flatten_struct(batch) if isinstance(leaf, torch.Tensor)]
        n = len(leaves[0])
        total = torch.stack([leaf.reshape(n, -1).sum(1).float() for leaf in leaves]).sum(0)
        logits = torch.stack([(total + k).sin() for k in range(int(self.action_space.n))], 1)
        outputs = {"action_dist_inputs": logits, "total": total}
        if self.model_config["memory"]:
            outputs = {name: output[:, None] for name, output in outputs.items()}
            outputs["state_out"] = {"h": batch["state_in"]["h"] * 2 + total[:, None].cos()}
        for how in self.model_config["hows"]:
            how(batch, leaves)
        return outputs


def samples_of(space):
    space.seed(3)
    return [space.sample() for _ in range(5)]


def make_config(space, memory, hows, connectors=None, **options):
    obs = samples_of(space)
    env = scripted(counting(2, 4), space=space, see=lambda agent, t: obs[t])
    spec = fastmarl.RLModuleSpec(module_class=Net, model_config={"memory": memory, "hows": hows})
    return fastmarl.EnvRunnerConfig(env=env, rl_module_spec=spec, seed=1,
                                    env_to_module_connector=connectors, **options)  # fmt: skip


def sampled(config):
    """Return the observations, actions and rewards of agents, and their modules' outputs."""
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        chunks = runner.sample(num_timesteps=7) + runner.sample(num_timesteps=6)
    return [
        (agent, part.get_observations(), part.get_actions(), part.get_rewards(), part.get_extra_model_outputs())
        for chunk in chunks
        for agent, part in chunk.agent_episodes.items()
    ]


CONNECTORS = {"none": None, "frames": [FrameStacking(num_frames=2)], "filter": [MeanStdFilter()]}


@pytest.mark.slow
@settings(max_examples=25)
@given(
    hows=st.lists(st.sampled_from(HOWS), max_size=4),
    space=st.sampled_from([BOX, NESTED]),
    memory=st.booleans(),
    connectors=st.sampled_from(sorted(CONNECTORS)),
    num_envs=st.sampled_from([1, 3]),
)
def test_the_record_is_that_of_a_module_that_leaves_its_batch_alone(hows, space, memory, connectors, num_envs):
    pieces = CONNECTORS[connectors] if space is BOX else None
    options = {"num_envs_per_env_runner": num_envs}
    got, expected = (sampled(make_config(space, memory, each, pieces, **options)) for each in (hows, []))
    assert_same(got, expected, "record")


@pytest.mark.parametrize("how", HOWS)
def test_changes_to_the_batch_leave_records_of_batched_envs_alone(how):
    spec = [
        fastmarl.RLModuleSpec(module_class=Net, model_config={"memory": False, "hows": hows}) for hows in ([how], [])
    ]
    options = {"env": "fastmarl.cart_pole", "num_envs_per_env_runner": 3, "seed": 1}
    got, expected = (sampled(fastmarl.EnvRunnerConfig(rl_module_spec=each, **options)) for each in spec)
    assert_same(got, expected, "record")


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("how", HOWS)
def test_changes_to_the_batch_leave_actions_of_a_policy_alone(how, memory):
    actions = []
    for hows in ([how], []):
        with fastmarl.MultiAgentEnvRunner(make_config(NESTED, memory, hows)) as runner:
            policy = fastmarl.Policy.from_runner(runner)
        obs = samples_of(NESTED)
        actions.append([policy.act(obs[t % 5], "agent_0") for t in range(12)])
    assert actions[0] == actions[1]


def test_a_batch_that_is_kept_stays_as_it_was():
    class Keeps(Net):
        kept = []  # noqa: RUF012

        def _forward(self, batch, **kwargs):
            self.kept.append(batch["obs"])
            return super()._forward(batch)

    spec = fastmarl.RLModuleSpec(module_class=Keeps, model_config={"memory": False, "hows": []})
    config = fastmarl.EnvRunnerConfig(env="fastmarl.cart_pole", rl_module_spec=spec, seed=1)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        for _ in range(4):  # blocks are filled again
            before = [obs.clone() for obs in Keeps.kept]
            runner.sample(num_timesteps=30)
            assert all(map(torch.equal, before, Keeps.kept[: len(before)]))


def test_an_error_after_the_batch_was_changed_comes_through():
    def fails(batch, leaves):
        raise ValueError("mine")

    with fastmarl.MultiAgentEnvRunner(make_config(BOX, False, [taken_out, added, fails])) as runner:
        with pytest.raises(ValueError, match="mine") as error:
            runner.sample(num_timesteps=3)
        assert "of module 'default_policy', with a batch of more NoneType, 0 int" in error.value.__notes__[0]


class Cached(torch.nn.Module):
    """Makes an encoding and a running mean in its first forward pass."""

    def __init__(self):
        super().__init__()
        self.layer, self.pi, self.encoding = torch.nn.Linear(18, 4), torch.nn.Linear(4, 5), None
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, batch):
        features = self.layer(batch["obs"])
        if self.encoding is None:
            self.encoding = torch.cos(torch.arange(4.0))
        self.mean = 0.9 * self.mean + 0.1 * features.detach().mean(0)
        return {"action_dist_inputs": self.pi(features * self.encoding - self.mean)}


def acts_in_runner(net):
    with fastmarl.MultiAgentEnvRunner(config_of(net)) as runner:
        runner.sample(num_timesteps=3)


def acts_in_evaluation(net):
    with fastmarl.MultiAgentEnvRunner(config_of(net)) as runner:
        runner.evaluate(1)


def config_of(net):
    return fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", policies={"p": net}, seed=0)


@pytest.mark.parametrize("acts", [acts_in_runner, acts_in_evaluation])
def test_tensors_that_are_kept_from_acting_can_be_trained_with(acts):
    net = Cached()
    acts(net)
    net({"obs": torch.ones(2, 18)})["action_dist_inputs"].sum().backward()
    assert net.layer.weight.grad is not None
    net.load_state_dict(net.state_dict())
    assert net.encoding.add_(1).requires_grad_().is_leaf and not net.mean.is_inference()


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_leaves_gradients_as_they_were(before, monkeypatch):
    enter = torch.no_grad.__enter__

    def interrupted(self):
        enter(self)
        raise KeyboardInterrupt

    with fastmarl.MultiAgentEnvRunner(config_of(Cached())) as runner, torch.set_grad_enabled(before):
        with monkeypatch.context() as patched:
            patched.setattr(torch.no_grad, "__enter__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.sample(num_timesteps=3)
        assert torch.is_grad_enabled() is before
        runner.sample(num_timesteps=3)
        assert torch.is_grad_enabled() is before
