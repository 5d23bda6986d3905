"""All rows of the table, and why some of them don't hold."""

from support.rllib_api import configs, episodes, older, reports, runners, uses

PARTS = (runners, episodes, reports, configs, older, uses)
PIECES = "the time of one connector piece; fastmarl times all connectors of a stage together"
MISPLACED = "a timer of resets, which RLlib's runner puts at the top level by a mistyped argument"
LENGTHS = "the steps of the chunks that RLlib's pipeline reads; fastmarl's reads none"
FILES = "a name in RLlib's form of checkpoints, which is pickle; `fastmarl` writes JSON and safetensors"
PIPELINE = "default pieces can't be left out; they are part of the sampler"
OF_SPACES = "spaces are those of the environment, or of an `RLModuleSpec`"
REASONS = {
    "MultiAgentEnvRunner: CLASS_AND_CTOR_ARGS_FILE_NAME": FILES,
    "MultiAgentEnvRunner: METADATA_FILE_NAME": FILES,
    "MultiAgentEnvRunner: STATE_FILE_NAME": FILES,
    "Metrics: timers/(piece)": MISPLACED,
    "Metrics: env_to_module_connector/timers/(piece)": PIECES,
    "Metrics: module_to_env_connector/timers/(piece)": PIECES,
    "Metrics: env_to_module_sum_episodes_length_in": LENGTHS,
    "Metrics: env_to_module_sum_episodes_length_out": LENGTHS,
    "Metrics: env_runner_state_server_pull": "IMPALA's server of weights is an RLlib actor",
    "Config: action_space": OF_SPACES,
    "Config: observation_space": OF_SPACES,
    "Config: add_default_connectors_to_env_to_module_pipeline": PIPELINE,
    "Config: add_default_connectors_to_module_to_env_pipeline": PIPELINE,
    "Config: create_env_on_local_worker": "a runner always has environments; a group has no local runner",
    "Config: enable_tf1_exec_eagerly": "TensorFlow only",
    "Config: episodes_to_numpy": "only `True`: columns of episodes are arrays from the start",
    "Config: local_gpu_idx": 'use `device="cuda:1"`',
    "Config: remote_worker_envs": '`gym_env_vectorize_mode="async"` steps environments in worker processes',
    "Config: stats_cls_lookup": "the reductions of `MetricsLogger` are fixed",
    "Config: train_batch_size": "a batch size for the learner of RLlib's old API stack",
    "Ray 2.40 to 2.47: `agent_to_module_mapping_fn` in the state, to 2.42": "a state is plain data, without functions",
}
SLICES = "RLlib's loses infos, agents' flags or ids (13 in docs/differences.md)"
RAISES = "RLlib's raises"
AGAIN = "pass the config's functions again; a checkpoint is plain data"
NOTES = {  # of rows that hold, where there is more to say
    "MultiAgentEnvRunner: from_checkpoint": AGAIN,
    "MultiAgentEnvRunner: from_checkpoint(filesystem)": "by keyword",
    "MultiAgentEnvRunner: get_weights(modules)": "RLlib's returns all of them",
    "MultiAgentEnvRunner: sample(random_actions)": "with `action_logp`, which RLlib's lacks",
    "MultiAgentEnvRunner: save_to_path(use_msgpack)": "ignored; a checkpoint is JSON and safetensors",
    "MultiAgentEnvRunner: num_env_steps_sampled_lifetime": "counted by the runner; RLlib's is set from outside",
    "Metrics: connector_pipeline_timer": "of resets; reported under `env_to_module_connector`",
    "Config: gym_env_vectorize_mode": '`"async"` as well, which RLlib refuses',
    "Config: env_to_module_connector": "or `fastmarl.connectors`; what RLlib's pieces make is not recorded",
    "Config: disable_env_checking": "the first `reset()` and `step()` are checked, not before",
    **{f"MultiAgentEpisode: {name}": SLICES for name in ("__getitem__", "slice")},
    **{f"SingleAgentEpisode: {name}": SLICES for name in ("__getitem__", "slice", "cut")},
    **{f"MultiAgentEpisode: get_extra_model_outputs({name})": RAISES for name in ("env_steps", "fill")},
    **{
        f"{cls}: {name}": f"{RAISES}, since Ray 2.46; here it works as before"
        for cls in ("MultiAgentEpisode", "SingleAgentEpisode")
        for name in ("add_temporary_timestep_data", "get_temporary_timestep_data")
    },
}
