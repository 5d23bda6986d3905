"""RLlib's PPO with a shared policy: --sampler rllib uses its own runner, exact or fast ours."""

import logging
import warnings

import common
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

import fastmarl.rllib


class ScaledRewards(ParallelPettingZooEnv):
    """Scales rewards, and reports the time limit only for the whole episode.

    RLlib 2.60 treats a time limit of a single agent as a terminal state and estimates no future after it. With that,
    PPO had not reached a mean return of -57 after 264,000 env steps; without, it had after 142,400 (seed 0, RLlib's own
    initial weights).
    """

    def step(self, actions):
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        rewards = {agent: common.REWARD_SCALE * reward for agent, reward in rewards.items()}
        return obs, rewards, terminateds, {"__all__": truncateds["__all__"]}, infos


RETURNS = []  # in the environment's own scale


def keep_return(*, episode, **_):
    RETURNS.append(episode.get_return() / common.REWARD_SCALE)


CLASSES = {
    "rllib": (MultiAgentEnvRunner, PPOTorchLearner),
    "exact": (fastmarl.rllib.MultiAgentEnvRunner, fastmarl.rllib.PPOTorchLearner),
    "fast": (
        fastmarl.rllib.MultiAgentEnvRunner.options(sampler="fast"),
        fastmarl.rllib.PPOTorchLearner.options(update="fast"),
    ),
}
given = common.arguments()
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")
ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
register_env("spread", lambda _: ScaledRewards(common.make_env()))
runner_class, learner_class = CLASSES[given.sampler or "rllib"]
config = (
    PPOConfig()
    .environment("spread")
    .multi_agent(policies=["shared"], policy_mapping_fn=lambda *_, **__: "shared")
    .env_runners(
        env_runner_cls=runner_class,
        num_env_runners=0,
        num_envs_per_env_runner=common.NUM_ENVS,
        rollout_fragment_length=common.FRAGMENT,
    )
    .rl_module(
        model_config=DefaultModelConfig(fcnet_hiddens=[*common.HIDDENS], fcnet_activation="tanh", vf_share_layers=False)
    )
    .training(
        learner_class=learner_class,
        train_batch_size_per_learner=common.NUM_ENVS * common.FRAGMENT,
        minibatch_size=common.MINIBATCH,
        num_epochs=common.EPOCHS,
        gamma=common.GAMMA,
        lambda_=common.LAMBDA,
        clip_param=common.CLIP,
        vf_loss_coeff=common.VF_COEFF,
        vf_clip_param=float("inf"),
        entropy_coeff=common.ENTROPY_COEFF,
        use_kl_loss=False,
        lr=common.LEARNING_RATE,
        grad_clip=common.MAX_GRAD_NORM,
        grad_clip_by="global_norm",
    )
    .callbacks(on_episode_end=keep_return)
    .debugging(seed=given.seed)
)
algorithm = config.build_algo()
learner = algorithm.learner_group._learner
common.initialize(learner.module["shared"].parameters())
algorithm.env_runner.set_state({"rl_module": learner.module.get_state()})
progress = common.Progress(given)
while not progress.is_over:
    algorithm.train()
    progress.add(common.NUM_ENVS * common.FRAGMENT, RETURNS)
    RETURNS.clear()
algorithm.stop()
ray.shutdown()
