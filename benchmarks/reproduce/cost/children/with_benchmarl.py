"""IPPO by BenchMARL, with GAE; LBF, which it does not ship, is a task of its PettingZoo class.

Sampling includes its logging of the batch and the update of the collector's weights.
"""

import meter
import torch
from benchmarl.algorithms import IppoConfig
from benchmarl.environments.pettingzoo.common import PettingZooClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from lbf_env import make_env


class Foraging(PettingZooClass):
    def get_env_fun(self, num_envs, continuous_actions, seed, device):
        return make_env

    def supports_discrete_actions(self):
        return True


class Clock(Callback):
    def __init__(self):
        super().__init__()
        self.meter = meter.Meter(updates)

    def on_batch_collected(self, batch):
        self.meter.sampled(batch.numel())

    def on_train_end(self, training_td, group):
        self.meter.learned()


torch.set_num_threads(1)
updates = meter.updates()
batch = meter.NUM_ENVS * meter.LIMIT
config = ExperimentConfig.get_from_yaml()
options = {
    "prefer_continuous_actions": False, "gamma": meter.GAMMA, "lr": meter.LEARNING_RATE, "adam_eps": meter.ADAM_EPS,
    "clip_grad_val": meter.MAX_GRAD_NORM, "max_n_frames": None, "max_n_iters": updates + meter.SKIPPED,
    "on_policy_collected_frames_per_batch": batch, "on_policy_n_envs_per_worker": meter.NUM_ENVS,
    "on_policy_n_minibatch_iters": meter.EPOCHS, "on_policy_minibatch_size": batch,
    "evaluation": False, "render": False, "loggers": [], "create_json": False,
}  # fmt: skip
for name, value in options.items():
    setattr(config, name, value)
algorithm = IppoConfig.get_from_yaml()
algorithm.entropy_coef, algorithm.lmbda, algorithm.clip_epsilon = meter.ENTROPY_COEFF, meter.LAMBDA, meter.CLIP
model = MlpConfig(num_cells=list(meter.HIDDENS), layer_class=torch.nn.Linear, activation_class=torch.nn.ReLU)
clock = Clock()
experiment = Experiment(
    task=Foraging(name="LBF", config={"max_cycles": meter.LIMIT}), algorithm_config=algorithm, model_config=model,
    critic_model_config=model, seed=0, config=config, callbacks=[clock],
)  # fmt: skip
torch.set_num_threads(1)  # collectors change it
experiment.run()
clock.meter.report()
