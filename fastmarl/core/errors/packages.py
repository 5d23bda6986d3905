"""Packages that optional features require, and their names in pip."""

from __future__ import annotations

NEEDED: dict[str, tuple[str, str | None]] = {  # module -> (name of its package in pip, fastmarl extra that includes it)
    "ale_py": ("ale-py", None),
    "gymnasium_robotics": ("gymnasium-robotics", None),
    "imageio_ffmpeg": ("imageio-ffmpeg", "video"),
    "lbforaging": ("lbforaging", None),
    "lz4": ("lz4", None),
    "magent2": ("magent2", "pettingzoo"),
    "matplotlib": ("matplotlib", "viz"),
    "minari": ("'minari[hdf5]'", "minari"),
    "mpe2": ("mpe2", "pettingzoo"),
    "multigrid": ("multigrid", None),
    "onnx": ("onnx onnxscript", "onnx"),
    "pettingzoo": ("'pettingzoo[butterfly,classic,sisl]'", "pettingzoo"),
    "psutil": ("psutil", "bench"),
    "pufferlib": ("pufferlib", None),
    "pyarrow": ("pyarrow", "io"),
    "pyspiel": ("open-spiel", "openspiel"),
    "ray": ("'ray[rllib]>=2.60,<2.61'", "rllib"),
    "rware": ("rware", None),
    "scipy": ("scipy", "stats"),
    "stable_baselines3": ("stable-baselines3", None),
    "tensorboard": ("tensorboard", "tensorboard"),
    "vmas": ("vmas", None),
    "wandb": ("wandb", "wandb"),
}


def how_to_install(module: str) -> str:
    """Return a command that installs the package of this module."""
    if module not in NEEDED:
        return "install the package that contains it"
    package, extra = NEEDED[module]
    return f"pip install {package}" + (f" (or, in a clone of fastmarl, pip install -e '.[{extra}]')" if extra else "")
