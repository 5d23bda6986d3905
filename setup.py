"""Builds src_ext/*.pyx as fastmarl.core.native._*.

FASTMARL_CHECKED=1 turns bounds, None and initialised checks on. FASTMARL_SANITIZE=1 has gcc's AddressSanitizer and
UndefinedBehaviorSanitizer look at the code of the release build: their runtime must be preloaded, as `make
test-sanitized` does.

Each build and Python keeps its C files, objects and libraries in a folder of its own under build/, so changing between
them recompiles nothing that is up to date and never mixes objects. The last one built in place is in
fastmarl/core/native/.
"""

import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

from index_page import absolute_links, project_urls, repository_url  # noqa: E402

CHECKED = os.environ.get("FASTMARL_CHECKED", "0") == "1"
SANITIZE = os.environ.get("FASTMARL_SANITIZE", "0") == "1"
if CHECKED and SANITIZE:  # what a check turns into an exception, no sanitizer sees
    raise SystemExit("set FASTMARL_CHECKED=1 or FASTMARL_SANITIZE=1, not both")
PACKAGE = "fastmarl.core.native"
BUILD = "sanitized" if SANITIZE else "checked" if CHECKED else "release"
BUILD_BASE = f"build/{BUILD}-{sys.implementation.cache_tag}"
CORES = os.cpu_count() or 1
COMPILES = not {"build_py", "egg_info", "sdist"} & set(sys.argv)  # what copies or lists files does not

# Cython's own code for memory views and functions is most of what gcc compiles: here once, not once in each extension.
SHARED = Path("src_ext/_shared.c")  # written by Cython

# Where a * b + c is rounded once instead of twice, sums differ from torch's in their last bits.
EXACT = ["-ffp-contract=off"]
ROUNDED = ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
FLAGS = {"_adam": [*EXACT, "-fno-math-errno"], "_dense": ROUNDED, "_draws": ROUNDED, "_ppo": ROUNDED}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"] if SANITIZE else []
OPTIMIZATION = ["-O1", "-g", "-fno-omit-frame-pointer"] if CHECKED or SANITIZE else ["-O3", "-g0"]
STRIP = {"linux": ["-Wl,--strip-all"], "darwin": ["-Wl,-x"]}.get(sys.platform, [])
LINK = [*SANITIZERS, *([] if CHECKED or SANITIZE else STRIP)]


def extension(source: Path) -> Extension:
    return Extension(
        f"{PACKAGE}.{source.stem}",
        [source.as_posix()],
        include_dirs=[numpy.get_include(), "src_ext"],
        define_macros=[
            ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
            ("FASTMARL_CHECKED", str(int(CHECKED))),
            ("FASTMARL_SANITIZE", str(int(SANITIZE))),
        ],
        extra_compile_args=[*OPTIMIZATION, *FLAGS.get(source.stem, EXACT), *SANITIZERS],
        extra_link_args=LINK,
        depends=["setup.py", *map(str, Path("src_ext").glob("*.h"))],
    )


extensions = [extension(path) for path in sorted(Path("src_ext").glob("*.pyx"))]


class BuildExtensions(build_ext):
    """Puts the chosen build in place even when the other one, lying there, is newer."""

    def run(self):
        if self.inplace:  # an editable install would compile everything anew in a temporary folder
            self.build_temp, self.build_lib = f"{BUILD_BASE}/temp", f"{BUILD_BASE}/lib"
        super().run()

    def copy_extensions_to_source(self):
        force, self.force = self.force, True
        super().copy_extensions_to_source()
        self.force = force


def compiled(extensions):
    """With C in the place of Cython, the longest to compile first."""
    shared = extension(SHARED)
    by_size = sorted(extensions, key=lambda one: Path(one.sources[0]).stat().st_size, reverse=True)
    return cythonize(
        [shared, *by_size],
        shared_utility_qualified_name=shared.name,
        include_path=["src_ext", "."],
        build_dir=f"{BUILD_BASE}/cython/{PACKAGE}",  # the C files name it: those of another can't be used again
        nthreads=CORES,
        compiler_directives={
            "language_level": 3,
            "boundscheck": CHECKED,
            "nonecheck": CHECKED,
            "initializedcheck": CHECKED,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
        },
    )


if __name__ == "__main__":  # the processes that run Cython import this file where they are not forked
    setup(
        long_description=absolute_links((ROOT / "README.md").read_text(), repository_url()),
        long_description_content_type="text/markdown",
        project_urls=project_urls(repository_url()),
        # `fastmarl train` finds the examples in the package of a wheel, and beside it in a clone.
        packages=[*find_namespace_packages(include=["fastmarl*"]), "fastmarl.examples"],
        package_dir={"fastmarl.examples": "examples"},
        cmdclass={"build_ext": BuildExtensions},
        options={"build": {"build_base": BUILD_BASE}, "build_ext": {"parallel": CORES}},
        ext_modules=compiled(extensions) if COMPILES else extensions,
    )
