"""PPO with a shared policy by TorchRL: collector, GAE, ClipPPOLoss and replay buffer, as in its tutorials."""

import common
import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data.replay_buffers import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import SerialEnv
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import MarlGroupMapType
from torchrl.modules import MultiAgentMLP, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators

BATCH = common.NUM_ENVS * common.FRAGMENT  # in env steps


def make_env():
    return PettingZooWrapper(
        common.make_env(), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP, categorical_actions=True, use_mask=False
    )


def net(n_outputs, key):
    layers = MultiAgentMLP(
        common.OBSERVATION_SIZE, n_outputs, common.AGENTS, centralized=False, share_params=True,
        depth=len(common.HIDDENS), num_cells=common.HIDDENS[0], activation_class=torch.nn.Tanh,
    )  # fmt: skip
    return TensorDictModule(layers, in_keys=[("agents", "observation")], out_keys=[("agents", key)])


given = common.arguments()
actor = ProbabilisticActor(
    module=net(common.ACTIONS, "logits"),
    in_keys=[("agents", "logits")],
    out_keys=[("agents", "action")],
    distribution_class=Categorical,
    return_log_prob=True,
    log_prob_key=("agents", "action_log_prob"),
)
critic = net(1, "state_value")
common.initialize([*actor.parameters(), *critic.parameters()])
envs = SerialEnv(common.NUM_ENVS, make_env)
envs.set_seed(given.seed)
collector = Collector(envs, actor, frames_per_batch=BATCH, total_frames=-1)
torch.set_num_threads(1)  # collectors change it
loss = ClipPPOLoss(
    actor, critic, clip_epsilon=common.CLIP, entropy_coeff=common.ENTROPY_COEFF, critic_coeff=common.VF_COEFF,
    loss_critic_type="l2", normalize_advantage=False,
)  # fmt: skip
loss.set_keys(reward=("agents", "reward"), action=("agents", "action"), value=("agents", "state_value"),
              sample_log_prob=("agents", "action_log_prob"), done=("agents", "done"),
              terminated=("agents", "terminated"))  # fmt: skip
loss.make_value_estimator(ValueEstimators.GAE, gamma=common.GAMMA, lmbda=common.LAMBDA)
buffer = ReplayBuffer(
    storage=LazyTensorStorage(BATCH), sampler=SamplerWithoutReplacement(), batch_size=common.MINIBATCH // common.AGENTS
)
optimizer = torch.optim.Adam(loss.parameters(), lr=common.LEARNING_RATE, eps=common.ADAM_EPS)
reward_sum = torch.zeros(common.NUM_ENVS)
progress = common.Progress(given)
for batch in collector:
    ended, rewards = [], batch["next", "agents", "reward"].sum((-2, -1))
    for t in range(common.FRAGMENT):
        reward_sum += rewards[:, t]
        is_over = batch["next", "agents", "done"][:, t, 0, 0]
        ended += reward_sum[is_over].tolist()
        reward_sum[is_over] = 0
    batch["next", "agents", "reward"] *= common.REWARD_SCALE
    with torch.no_grad():
        loss.value_estimator(batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params)
    advantages = batch["advantage"]
    batch["advantage"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    buffer.extend(batch.reshape(-1))
    for _ in range(common.EPOCHS * BATCH * common.AGENTS // common.MINIBATCH):
        losses = loss(buffer.sample())
        optimizer.zero_grad()
        (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), common.MAX_GRAD_NORM)
        optimizer.step()
    collector.update_policy_weights_()
    progress.add(BATCH, ended)
    if progress.is_over:
        break
collector.shutdown()
