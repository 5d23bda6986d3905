"""IPPO by TorchRL: collector, GAE, ClipPPOLoss, as in its tutorials; the whole batch is one minibatch."""

import meter
import torch
from lbf_env import make_env
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import SerialEnv
from torchrl.modules import MultiAgentMLP, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators

envs = SerialEnv(meter.NUM_ENVS, make_env)
envs.set_seed(0)
n_agents, n_obs = envs.observation_spec["agents", "observation"].shape[-2:]


def net(n_outputs, key):
    layers = MultiAgentMLP(
        n_obs, n_outputs, n_agents, centralized=False, share_params=True, depth=len(meter.HIDDENS),
        num_cells=meter.HIDDENS[0], activation_class=torch.nn.ReLU,
    )  # fmt: skip
    return TensorDictModule(layers, in_keys=[("agents", "observation")], out_keys=[("agents", key)])


actor = ProbabilisticActor(
    module=net(make_env().full_action_spec["agents", "action"].space.n, "logits"),
    in_keys=[("agents", "logits")],
    out_keys=[("agents", "action")],
    distribution_class=Categorical,
    return_log_prob=True,
    log_prob_key=("agents", "action_log_prob"),
)
critic = net(1, "state_value")
collector = Collector(envs, actor, frames_per_batch=meter.NUM_ENVS * meter.LIMIT, total_frames=-1)
torch.set_num_threads(1)  # collectors change it
loss = ClipPPOLoss(
    actor, critic, clip_epsilon=meter.CLIP, entropy_coeff=meter.ENTROPY_COEFF, critic_coeff=1.0,
    loss_critic_type="l2", normalize_advantage=False,
)  # fmt: skip
loss.set_keys(reward=("agents", "reward"), action=("agents", "action"), value=("agents", "state_value"),
              sample_log_prob=("agents", "action_log_prob"), done=("agents", "done"),
              terminated=("agents", "terminated"))  # fmt: skip
loss.make_value_estimator(ValueEstimators.GAE, gamma=meter.GAMMA, lmbda=meter.LAMBDA)
optimizer = torch.optim.Adam(loss.parameters(), lr=meter.LEARNING_RATE, eps=meter.ADAM_EPS)
clock = meter.Meter(meter.updates())
for batch in collector:
    clock.sampled(batch.numel())
    with torch.no_grad():
        loss.value_estimator(batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params)
    rows = batch.reshape(-1)
    for _ in range(meter.EPOCHS):
        losses = loss(rows)
        optimizer.zero_grad()
        (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), meter.MAX_GRAD_NORM)
        optimizer.step()
    collector.update_policy_weights_()
    clock.learned()
    if clock.is_over:
        break
clock.report()
collector.shutdown()
