"""Creation of environments from names."""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from fastmarl.core.envs.aec import AECPettingZooEnv
from fastmarl.core.envs.base import MultiAgentEnv
from fastmarl.core.envs.gymnasium_single import SingleGymnasiumEnv, has_one_agent
from fastmarl.core.envs.openspiel import OpenSpielEnv
from fastmarl.core.envs.pettingzoo import ParallelPettingZooEnv
from fastmarl.core.envs.pufferlib import PufferLibEnv
from fastmarl.core.envs.suggestions import HOMES, option_meant, suggestions
from fastmarl.core.errors import EnvCheckError, did_you_mean, misfit
from fastmarl.core.errors.packages import NEEDED, how_to_install

_registered: dict[str, Callable[[dict], Any]] = {}
_HOMES = {  # packages whose envs are not at the top level
    "magent2": "magent2.environments",
    "gymnasium_robotics": "gymnasium_robotics.envs.multiagent_mujoco",
}
_BUNDLED = {  # name -> path of its class
    "fastmarl.cart_pole": "fastmarl.envs.cart_pole:CartPole",
    "fastmarl.connect_four": "fastmarl.envs.connect_four:ConnectFour",
    "fastmarl.gridworld": "fastmarl.envs.gridworld:GridWorld",
    "fastmarl.lbforaging": "fastmarl.envs.lbforaging:LevelBasedForaging",
    "fastmarl.rware": "fastmarl.envs.rware:Warehouse",
    "fastmarl.simple_spread": "fastmarl.envs.simple_spread:SimpleSpread",
    "fastmarl.simple_tag": "fastmarl.envs.simple_tag:SimpleTag",
}
_BEGIN_IN_NEXT_STEP = {"connect4", "tripletriad"}  # PufferLib envs with the undeclared autoreset mode NEXT_STEP
_MAKERS = ("parallel_env", "env")  # functions in PettingZoo modules, in order of preference
_OF_PETTINGZOO = {"pettingzoo", "mpe2", "magent2"}  # packages whose `_MAKERS` functions take keyword options
_KNOWN_PACKAGES = {"fastmarl", "openspiel", "vmas", "pufferlib", *_OF_PETTINGZOO, *_HOMES}
_MAIN = ("__main__", "__mp_main__")  # module names of the script, here and in a spawned process, which re-imports it
_asked_for: set[str | None] = set()  # names of all envs that this program has requested
_PROCESS = os.getpid()
_CONFIGS = {"config", "env_config", "cfg", "env_cfg", "conf", "context", "env_context"}  # parameters for a whole config


def register_env(name: str, creator: Callable[[dict], Any]) -> None:
    """Make `env=name` call `creator(env_config)`. Registering a name again replaces its creator.

    Raises:
        EnvCheckError: If `creator` cannot be called this way, or is an env instead of a callable that creates one.
    """
    if not isinstance(name, str):
        raise EnvCheckError(f"expected a string as the name of an environment, got {name!r}")
    if not _takes_options(creator):
        _check_is_creator(creator, f"the creator of {name!r}")
    _registered[name] = creator


def registered_creator(name: str) -> Callable[[dict], Any] | None:
    """Return the creator registered under a name with `register_env()` or, if Ray has been imported, with Tune."""
    tune: Any = sys.modules.get("ray.tune.registry")
    # The query would hang in a forked process, which lacks Ray's threads, so the parent makes it before forking.
    asks_tune = tune is not None and name not in _registered and os.getpid() == _PROCESS
    if asks_tune and tune._global_registry.contains(tune.ENV_CREATOR, name):
        return tune._global_registry.get(tune.ENV_CREATOR, name)
    return _registered.get(name)


def env_creator(env: Any) -> Callable[[dict], Any]:
    """Return a function that creates an env from an `env_config`.

    Args:
        env: A class or callable, called with `env_config` as the only argument, as in RLlib; a Gymnasium or PettingZoo
            class, a module with a PettingZoo function `parallel_env` or `env`, or such a function, called with
            `**env_config` (or the entire config if the first parameter is named `config`, `env_config` or similar), and
            `num_envs` if that is the first parameter; or a name:

            - a name registered with `register_env()` or `ray.tune.register_env()`;
            - the name of a PettingZoo module, for example "mpe2.simple_spread_v3", "pettingzoo.classic.connect_four_v3"
              or "magent2.battle_v4";
            - "package.module:Name" for a class or callable in that module;
            - an id in the Gymnasium registry, passed to `gym.make` with `**env_config`: "CartPole-v1", whose only agent
              is 0, or "lbforaging:Foraging-8x8-2p-3f-v3", which includes the module that registers it;
            - "openspiel." followed by a game, such as "openspiel.kuhn_poker", with the game's parameters as
              `env_config`;
            - "fastmarl.cart_pole", "fastmarl.simple_spread", "fastmarl.simple_tag", "fastmarl.connect_four",
              "fastmarl.gridworld", "fastmarl.lbforaging" or "fastmarl.rware", which are compiled and bundled; "vmas."
              followed by a scenario, such as "vmas.balance"; or "pufferlib." followed by one of its compiled envs, such
              as "pufferlib.rware". These are batches of `num_envs` envs, with `**env_config` as options.

    Raises:
        EnvCheckError: If a name is unknown, a package is not installed, or `env` is an instance or cannot be called
            this way. The returned function also raises it, if options are unknown.
    """
    _asked_for.add(env_name(env))
    if isinstance(env, str):
        if (registered := registered_creator(env)) is not None:
            return env_creator(registered)
        if ":" in env:
            return _named_in_module(env)
        if env.startswith("fastmarl."):
            return _bundled(env)
        return _from_gymnasium(env, env) if env in gym.registry else _from_module(env)
    if isinstance(env, ModuleType):
        return _with_options(_maker_in(env, env.__name__), env.__name__)
    if _takes_options(env):
        made = _without_partial(env)
        name = f"{made.__module__}.{made.__qualname__}"
        return _with_options(env, name, is_batch=_first_parameter(env) == "num_envs")
    _check_is_creator(env, "env")
    return env


def portable(env: Any) -> Any:
    """Return an equivalent of `env` that `env_creator()` accepts in another process, where no names are registered."""
    _asked_for.add(env_name(env))
    if isinstance(env, str):
        return registered_creator(env) or _portable_name(env)
    env_creator(env)  # raises errors here rather than in the other process
    return env.__name__ if isinstance(env, ModuleType) else env


def _portable_name(name: str) -> Any:
    may_be_of_script = name.startswith("openspiel.") and "pyspiel" in sys.modules
    return _Registered(name) if may_be_of_script or name in gym.registry else name


class _Registered:
    """Creates an env by a name that other processes may not know; its pickle contains the registration.

    Args:
        name: Name of the env.
        sent: Only in the other process: a module to import first, and the Gymnasium specification of the env, or None
            if the module registers the name.
    """

    def __init__(self, name: str, sent: tuple[str, EnvSpec | None] | None = None):
        self.__name__, self._sent = name, sent

    def __reduce__(self) -> tuple:
        return _Registered, (self.__name__, self._sent or _registration(self.__name__))

    def __call__(self, env_config: dict) -> Any:
        if self._sent is not None:
            module, spec = self._sent
            import_module(module)
            if spec is not None:
                gym.registry[self.__name__] = spec
        return env_creator(self.__name__)(env_config)


def _registration(name: str) -> tuple[str, EnvSpec | None]:
    """Return `sent` for `_Registered`. If the entry point is not a string, only the script can register the env."""
    spec = gym.registry.get(name)
    if spec is not None and isinstance(spec.entry_point, str):
        return spec.entry_point.partition(":")[0], spec
    return _MAIN[0], None


def env_name(env: Any) -> str | None:
    """Return a name by which another process can create the env, or None."""
    if isinstance(env, str):
        return env
    if isinstance(env, _Registered):
        return env.__name__
    if isinstance(env, ModuleType):
        return env.__name__
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    path = f"{module}:{name}"
    try:
        return path if module not in _MAIN and pkgutil.resolve_name(path) is env else None
    except (ValueError, ImportError, AttributeError):
        return None


def may_be_named_by_a_file(name: Any) -> bool:
    """Return True for known names and those that this program has requested; other names could run arbitrary code."""
    return isinstance(name, str) and (name in _asked_for or is_known(name))


def is_known(name: str) -> bool:
    """Return True if a name is registered or belongs to a known package.

    A name in the Gymnasium registry belongs to the package of its entry point. Envs of other packages may import a
    module named by an option, as shimmy's GymV26Environment-v0 does.
    """
    if registered_creator(name):
        return True
    if (spec := gym.registry.get(name)) is not None:
        code = spec.entry_point if isinstance(spec.entry_point, str) else getattr(spec.entry_point, "__module__", "")
        return code.partition(":")[0].partition(".")[0] in {"gymnasium", *_KNOWN_PACKAGES}
    return ":" not in name and name.partition(".")[0] in _KNOWN_PACKAGES


def _check_is_creator(creator: Any, what: str) -> None:
    if not inspect.isclass(creator) and hasattr(creator, "reset") and hasattr(creator, "step"):
        name = type(creator).__name__
        raise EnvCheckError(f"{what} is an instance of {name}, but several copies are needed; pass the class, or a "
                            f"callable such as lambda env_config: {name}(...)")  # fmt: skip
    if not callable(creator):
        raise EnvCheckError(f"{what} must be a class, a callable (env_config) -> env, or a registered name, "
                            f"got {creator!r:.200}")  # fmt: skip
    if misfit(creator, {}):
        name = getattr(creator, "__name__", repr(creator))
        raise EnvCheckError(f"{what} is called with env_config as its only argument, but {name} does not accept it; "
                            f"pass a callable such as lambda env_config: {name}(**env_config)")  # fmt: skip


def _takes_options(creator: Any) -> bool:
    """Return True if `creator` must be called with `**env_config`; see `env_creator()`."""
    made, first = _without_partial(creator), _first_parameter(creator)
    if inspect.isclass(made):
        return first == "num_envs" or (first not in _CONFIGS and _is_of_other_kind(made))
    if not inspect.isfunction(made):
        return False
    if made.__name__ in _MAKERS and made.__module__.partition(".")[0] in _OF_PETTINGZOO:
        return True
    if first is None:
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(made).parameters.values())
    return made.__name__ in _MAKERS and first not in _CONFIGS and not misfit(made)


def _without_partial(creator: Any) -> Any:
    return creator.func if isinstance(creator, partial) else creator


def _first_parameter(creator: Any) -> str | None:
    """Return the name of the first positional parameter, or None if there is none or it is unknown."""
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):
        return None
    return next((each.name for each in parameters if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)), None)


def _is_of_other_kind(env_class: type) -> bool:
    """Return True for a Gymnasium or PettingZoo class; fastmarl and RLlib classes receive the entire config instead."""
    if issubclass(env_class, MultiAgentEnv) or any(
        (base.__module__, base.__name__) == ("ray.rllib.env.multi_agent_env", "MultiAgentEnv")
        for base in env_class.__mro__
    ):
        return False
    is_gymnasiums = issubclass(env_class, (gym.Env, gym.vector.VectorEnv))
    return is_gymnasiums or AECPettingZooEnv.adapts(env_class) or ParallelPettingZooEnv.adapts(env_class)


def _with_options(make: Callable[..., Any], name: str, *, is_batch: bool = False) -> Callable[[dict], Any]:
    """Return a function that calls `make(**env_config)`, adding the runner's `num_envs` for a batch."""

    def create(env_config: Mapping[str, Any]) -> Any:
        of_runner = {"num_envs": getattr(env_config, "num_envs", 1)} if is_batch else {}
        try:
            return make(**{**of_runner, **env_config})
        except TypeError as error:
            if not _is_of_arguments(error):
                raise
            raise EnvCheckError(f"cannot create {name} with env_config={dict(env_config)!r:.200} as keyword arguments: "
                                f"{error}{option_meant(make, env_config)}") from error  # fmt: skip

    return create


def _is_of_arguments(error: TypeError) -> bool:
    """Return True if an error means that the arguments of a call did not match the signature."""
    problems = ("unexpected keyword argument", "multiple values for", "takes no arguments")
    return any(each in str(error) for each in problems) or ("missing" in str(error) and "argument" in str(error))


def _from_module(name: str) -> Callable[[dict], Any]:
    package, _, rest = name.partition(".")
    if not rest:
        raise _unknown(name, "it is not registered in this process; see fastmarl.register_env(), or give "
                             "my_module:MyEnv, as on the command line")  # fmt: skip
    if package == "openspiel":
        return _with_options(partial(OpenSpielEnv.load, rest), name)
    if not _is_installed(package):
        raise _unknown(name, f"the package {package!r} is not installed; {how_to_install(package)}")
    if package == "vmas":
        return _vmas_worlds(rest)
    if package == "pufferlib":
        return _pufferlib_envs(rest)
    home = _HOMES.get(package, package)
    path = name if name.startswith(home + ".") else f"{home}.{rest}"
    try:
        module = import_module(path)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{path}.".startswith(f"{missing}."):
            raise _unknown(name, f"there is no module {missing}", _sibling_modules(path)) from error
        raise _unknown(name, f"importing {path} failed: {error}; {how_to_install(package)}") from error
    return _with_options(_maker_in(module, name), name)


def _maker_in(module: ModuleType, name: str) -> Callable[..., Any]:
    for function in _MAKERS:
        if callable(make := getattr(module, function, None)):
            return make
    reason = f"expected parallel_env() or env() in the module {module.__name__}, which has none; see register_env()"
    raise _unknown(name, reason)


def _bundled(name: str) -> Callable[[dict], Any]:
    if name not in _BUNDLED:
        raise _unknown(name, f"bundled are {', '.join(_BUNDLED)}")
    return _with_options(pkgutil.resolve_name(_BUNDLED[name]), name, is_batch=True)


def _vmas_worlds(scenario: str) -> Callable[[dict], Any]:
    vmas = import_module("vmas")
    known = [*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios]
    if scenario not in known:
        raise _unknown(f"vmas.{scenario}", "vmas has no such scenario", [f"vmas.{name}" for name in known])

    def make(**options: Any) -> Any:  # options cannot replace the scenario, as it could be a file to run
        return vmas.make_env(scenario=scenario, terminated_truncated=True, **options)

    return _with_options(make, f"vmas.{scenario}", is_batch=True)


def _pufferlib_envs(name: str) -> Callable[[dict], Any]:
    ocean = import_module("pufferlib.ocean.environment")
    if name not in ocean.MAKE_FUNCTIONS:
        known = [f"pufferlib.{known}" for known in ocean.MAKE_FUNCTIONS]
        raise _unknown(f"pufferlib.{name}", "PufferLib has no such compiled env", known)
    make = ocean.env_creator(f"puffer_{name}")
    autoreset_mode = AutoresetMode.NEXT_STEP if name in _BEGIN_IN_NEXT_STEP else AutoresetMode.SAME_STEP

    def create(env_config: dict) -> PufferLibEnv:
        num_envs = getattr(env_config, "num_envs", 1)
        return PufferLibEnv(make(num_envs=num_envs, **env_config), num_envs, autoreset_mode=autoreset_mode)

    return create


def _named_in_module(name: str) -> Callable[[dict], Any]:
    """Resolve "package.module:Name", which is either a Gymnasium id that the module registers or an attribute of it."""
    path, _, attribute = name.rpartition(":")
    package = path.partition(".")[0]
    if path.endswith(".py") or not all(part.isidentifier() for part in path.split(".")):
        meant = f"{path.removesuffix('.py').replace('/', '.')}:{attribute}"
        raise _unknown(name, f"{path!r} is not a module name", [meant])
    if path not in sys.modules and not _is_installed(package):
        own = "" if package in NEEDED else f"run this in the folder that has {package}.py, or "
        raise _unknown(name, f"the package {package!r} is not installed; {own}{how_to_install(package)}")
    try:
        module = import_module(path)
    except ImportError as error:
        raise _unknown(name, str(error)) from error
    if attribute in gym.registry or not attribute.isidentifier():
        return _from_gymnasium(name, attribute)
    if not hasattr(module, attribute):
        raise _unknown(name, f"the module {path} has no {attribute!r}", [f"{path}:{found}" for found in vars(module)])
    return env_creator(getattr(module, attribute))


def _from_gymnasium(name: str, id_: str) -> Callable[[dict], Any]:
    """Return a creator of an env in the Gymnasium registry, without Gymnasium's checker, which assumes one agent."""
    try:
        gym.spec(id_)
    except gym.error.Error as error:
        raise _unknown(name, str(error)) from error

    def make(**options: Any) -> Any:
        env = gym.make(id_, disable_env_checker=True, **options)
        return SingleGymnasiumEnv(env) if has_one_agent(env) else env

    return _with_options(make, name)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _sibling_modules(path: str) -> list[str]:
    """Return the full names of the modules and classes in the parent package of `path`; [] if it does not exist."""
    parent = path.rpartition(".")[0]
    try:
        package = import_module(parent)
    except ImportError:
        return []
    if parent.partition(".")[0] in HOMES:  # `suggestions()` already includes its modules
        return []
    modules = [f"{parent}.{module.name}" for module in pkgutil.iter_modules(getattr(package, "__path__", []))]
    return modules + [f"{parent}:{name}" for name, value in vars(package).items() if inspect.isclass(value)]


def _unknown(name: str, reason: str, names: list[str] | None = None) -> EnvCheckError:
    close = suggestions(name, [*_registered, *_BUNDLED, *(names or [])])
    return EnvCheckError(f"no environment {name!r}: {reason}{did_you_mean(close)}")
