"""Reasons why RLlib's own loop samples: a stable code for each kind, and how to change the config."""

from typing import NamedTuple


class Reason(NamedTuple):
    """A reason why a runner falls back to RLlib's loop.

    Attributes:
        code: A key of CODES.
        text: Part of a sentence that names the cause.
    """

    code: str
    text: str


CODES = {  # code -> how to change the config
    "framework": 'use torch: config.framework("torch")',
    "episodes_to_numpy": "leave config.env_runners(episodes_to_numpy=True) as it is; code that needs lists can "
    "make them from the episodes that sample() returns",
    "vector_env": 'use RLlib\'s own, which steps the envs in turn: config.env_runners(gym_env_vectorize_mode="sync"), '
    "and no runner that replaces `env`",
    "module": "give the runner envs and a torch MultiRLModule: "
    "config.rl_module(rl_module_spec=MultiRLModuleSpec(...)), or none for RLlib's default",
    "connector_pipeline": "keep RLlib's default pieces at their places: "
    "config.env_runners(add_default_connectors_to_env_to_module_pipeline=True, "
    "add_default_connectors_to_module_to_env_pipeline=True), and no pipeline class of your own",
    "connector_piece": "let the piece read `batch`, `episodes`, `explore`, `rl_module` and `shared_data` alone; "
    "rewards and infos are in the episodes. Or derive it from SingleAgentObservationPreprocessor or "
    "MultiAgentObservationPreprocessor",
    "module_to_env_piece": "let the piece read `batch`, `episodes`, `explore`, `rl_module` and `shared_data` alone",
    "overridden_internal": "override methods that are part of the API (sample(), get_metrics(), ...), or use callbacks",
    "callback_reads_runner": "read the `episode` that the callback is given, or use on_sample_end(samples=...), which "
    "gets all episodes; a callback can keep its own data in episode.custom_data",
    "changed_while_running": "nothing, if it can wait: the next reset of all envs ends it; or call "
    "sample(force_reset=True)",
    "untested_ray": "install a version of Ray that fastmarl was tested with",
}
