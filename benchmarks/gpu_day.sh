#!/usr/bin/env bash
# Builds, tests and measures the GPU path on a machine with a GPU and no network, within 6 minutes:
#
#     make gpu-kit                 # on a machine with a network; then copy the working tree, with build/gpu_kit
#     bash benchmarks/gpu_day.sh
#
# The GPU machine needs Python 3.11 or newer with its headers, a C compiler, torch, NumPy, numba, Cython, setuptools,
# safetensors, pytest and hypothesis. Logs go to $OUT, or build/gpu_day. A step that fails does not stop the others; the
# exit status is 0 only if all pass. Without a GPU, everything runs on the CPU and the step "gpu" fails.
# PATIENCE=3 triples the time limits.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
logs=$(realpath -m "${OUT:-build/gpu_day}")
site=$PWD/build/gpu_day/site
export PYTHONPATH=$site:$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$logs"
failed=0
steps=()

step() { # NAME SECONDS COMMAND...
    local name=$1 limit=$(($2 * ${PATIENCE:-1})) begun=$SECONDS result=passed
    shift 2
    timeout --kill-after 2 "$limit" "$@" >"$logs/$name.log" 2>&1 || {
        result="FAILED ($?)" failed=1 # 124 and 137: timed out
        tail -n 40 "$logs/$name.log"
    }
    steps+=("| $name | $result | $((SECONDS - begun)) | $(tail -n 1 "$logs/$name.log" | tr -d '|=' | cut -c 1-80) |")
    echo "${steps[-1]}"
}

step kit 10 "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$site" build/gpu_kit/*.whl

step gpu 25 "$python" -c '
import os, platform, sysconfig
import Cython, numba, numpy, pytest, setuptools, torch
print("Python", platform.python_version(), os.cpu_count(), "cores")
print(*(f"{module.__name__} {module.__version__}" for module in (Cython, numba, numpy, pytest, setuptools, torch)))
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(header if os.path.exists(header) else f"NO {header}: nothing can be compiled")
if not torch.cuda.is_available():
    raise SystemExit("NO GPU: torch finds no CUDA device here, so all figures below are of the CPU")
print(torch.cuda.get_device_name(), "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())'

step build 90 "$python" setup.py --quiet build_ext --inplace

# Without our configuration, which requires a certain pytest and its plugins, and turns warnings into errors.
step tests 120 "$python" -m pytest -c /dev/null --rootdir . -v --tb short -p no:cacheprovider -o faulthandler_timeout=60 \
    tests/core/test_graph*.py $(grep -rl 'mark\.gpu' tests --include 'test_*.py')

step bench 100 "$python" benchmarks/bench_gpu.py

{
    printf '\n| step | result | seconds | last line |\n|---|---|---|---|\n'
    printf '%s\n' "${steps[@]}"
    echo
    grep '^|' "$logs/bench.log"
} | tee "$logs/summary.md"
exit "$failed"
