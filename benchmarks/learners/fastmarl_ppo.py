"""PPO with a shared policy, by fastmarl's runner and `fastmarl.learning`."""

import common

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.learning import PPOLearner, make_value_fn, to_tensors

given = common.arguments()
config = fastmarl.EnvRunnerConfig(
    env=given.env,
    num_envs_per_env_runner=common.NUM_ENVS,
    rollout_fragment_length=common.FRAGMENT,
    model_config={"fcnet_hiddens": list(common.HIDDENS), "fcnet_activation": "tanh", "vf_share_layers": False},
    reward_scale=common.REWARD_SCALE,
    seed=given.seed,
    num_threads=1,
)
runner = fastmarl.MultiAgentEnvRunner(config)
module = runner.module["default_policy"]
common.initialize(module.parameters())
learner = PPOLearner(
    module,
    lr=common.LEARNING_RATE,
    adam_eps=common.ADAM_EPS,
    epochs=common.EPOCHS,
    minibatch_size=common.MINIBATCH,
    clip=common.CLIP,
    vf_coeff=common.VF_COEFF,
    entropy_coeff=common.ENTROPY_COEFF,
    max_grad_norm=common.MAX_GRAD_NORM,
    num_threads=1,
)
progress = common.Progress(given)
while not progress.is_over:
    episodes = runner.sample()
    batch = columns(episodes, outputs=["action_logp", "vf_preds"])["default_policy"]
    add_gae(batch, gamma=common.GAMMA, lambda_=common.LAMBDA, value_fn=make_value_fn(module))
    tensors = to_tensors(batch, ["obs", "actions", "action_logp", "advantages", "value_targets"])
    advantages = tensors["advantages"]
    tensors["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    learner.update(tensors)
    ended = [episode.get_return() / common.REWARD_SCALE for episode in episodes if episode.is_done]
    progress.add(common.NUM_ENVS * common.FRAGMENT, ended)
runner.stop()
