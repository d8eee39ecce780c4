# Each target first installs what it needs, so it works in a fresh clone. Later calls skip the
# installation.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With this variable set, each new process would compile every module that it imports: seconds each.
unexport PYTHONDONTWRITEBYTECODE
BUILT_IN_MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
# Programs that the tests run, for systems without them: Node.js, a C compiler, curl and jq.
COMMANDS := $(VENV)/commands
# The last file that npm writes when it installs the Node.js clients that the tests run.
CLIENTS := tests/clients/node_modules/.package-lock.json
# The same for the compiler that checks the types of the console's JavaScript.
TYPESCRIPT := tools/javascript/node_modules/.package-lock.json
# Servers that tests start, and that need other package versions than $(VENV) has.
SERVERS := tests/servers/.venv
# The package with SDK 2 of RunPod, which $(VENV) has in version 1.
SDK2 := tests/sdk2/.venv
# RunPod's older SDKs, each in a folder of its version; $(VENV) has the packages that they import.
OLD_SDKS := tests/.sdks
# Python clients that the tests run, and that need other package versions than $(VENV) has.
PYTHON_CLIENTS := tests/clients/.venv
# A Python for arm64, the boards' architecture, which qemu runs, and the tests of code that depends
# on the architecture: struct layouts, calls and callbacks, and the processes of the engine host.
ARM64 := .arm64
ARM64_SUITE := tests/arm64 tests/unit/engine/backends/rkllm tests/unit/engine/hosts \
	$(wildcard tests/integration/engine/rkllm/test_fake_*.py) \
	tests/integration/engine/rkllm/test_rkllm_many.py tests/integration/engine/test_orphans.py

# What the tests need.
TEST_NEEDS := $(VENV)/.dev $(BUILT_IN_MODEL) $(CLIENTS) $(foreach folder,$(COMMANDS) $(SERVERS) $(SDK2) $(OLD_SDKS) $(PYTHON_CLIENTS),$(folder)/.installed)

# `make run` downloads the default model only if it is the one that runs.
RUN_MODEL := $(if $(MODEL_PATH)$(filter-out auto llamacpp,$(ENGINE)),,$(BUILT_IN_MODEL))

CODE := $(wildcard engine handler validation emulator jobs batch worker_rkllm common tests benchmarks tools/docs)
# The files that tools/plain_words.py checks: the product, its tools, all pages and the build files.
PROSE := $(wildcard engine handler validation emulator jobs batch worker_rkllm common tools benchmarks docs *.md Makefile Dockerfile pyproject.toml .ci/run)
PYTEST_ARGS ?=
JOBS ?= 100000
KILLS ?= 5000
SOAK_S ?= 1800
# More workers than cores: most tests mostly wait for another process, and with four of them two
# cores were idle for a quarter of the time. `loadfile` keeps the tests of a
# file in one worker, because they share fixtures. xdist would start files with few tests last, but
# those have the longest tests, so the files keep their order.
WORKERS ?= 5
# Tests and npm use the same programs.
export PATH := $(abspath $(COMMANDS))/bin:$(PATH)
# A worker that dies is not replaced: xdist would give its tests to other workers and never finish.
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# pytest-randomly imports numpy before validation/arrays.py can set this variable.
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

# Lock files list all packages, with the versions of overrides.in; --no-deps resolves none again.
UV_INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python --only-binary :all: --require-hashes --no-deps
UV_LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--only-binary :all: --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_ARGS)

# The variable disables the theme's warning about MkDocs 2.
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Only the job writes to stdout, so that `make run | tail -n 1` is JSON. The set-up prints to stderr.
# Two installs into one environment at the same time would conflict.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: run serve board sdk vision vision-machine wheel test test-changed test-long long-programs test-bare test-arm64 crash soak check check-fast bench docs docs-site screenshot lock clean help

run: $(VENV)/.serve $(RUN_MODEL) ## set up, then answer the job in test_input.json with the built-in model
	@$(BIN)/python -m handler

serve: $(VENV)/.serve $(RUN_MODEL) ## start the local server on 127.0.0.1:8000: RunPod's routes and OpenAI's
	@$(BIN)/python -m emulator

board: BUNDLE = board.zip
board: $(VENV)/.serve ## examine a Rockchip board with MODEL=/models/x.rkllm; BUNDLE=board.zip is the file to post
	@MODEL_PATH="$(or $(MODEL),$(MODEL_PATH))" $(BIN)/python -m handler doctor --bundle "$(BUNDLE)"

sdk: $(VENV)/.run ## install RunPod's SDK in .venv, for RunPod workers and its Python client

vision: vision-machine $(VENV)/.vision ## install what vision encoders need in .venv, on a board with Python 3.11 or 3.12

# The environment may have another Python than PYTHON.
vision-machine: SETUP_PYTHON = $(or $(wildcard $(BIN)/python),$(PYTHON))
vision-machine:
	@$(SETUP_PYTHON) -c 'import platform, sys; sys.exit(platform.machine() != "aarch64" or not (3, 11) <= sys.version_info[:2] <= (3, 12))' || { \
		echo 'rknn-toolkit-lite2 has packages for aarch64 with Python 3.11 or 3.12 only, which "$(SETUP_PYTHON)" is not: on a board, run `make clean` and `make vision PYTHON=python3.12`.' >&2; exit 1; }

wheel: DIST = dist
wheel: $(VENV)/.setup ## build the wheel in DIST=dist, for pip and uvx
	@$(BIN)/uv build --quiet --wheel --out-dir "$(DIST)" .

# Without SUITE, the folders of `testpaths` in pyproject.toml.
test: $(TEST_NEEDS) $(VENV)/.compiled ## the suite
	@$(PYTEST) $(PARALLEL) $(SUITE) $(PYTEST_ARGS)

test-long: long-programs $(TEST_NEEDS) ## long forms of tests, all or PART="crashes speed": tests/long/parts.py lists the parts
	@OPENBLAS_NUM_THREADS=1 PARALLEL="$(PARALLEL)" $(BIN)/python -m tests.long.parts $(PART) -- $(PYTEST_ARGS)

# Before the other installations, which take minutes.
long-programs: $(VENV)/.setup
	@$(BIN)/python -m tests.long.parts --check $(PART)

# In one process: for a few files, starting several takes longer than their tests.
test-changed: BASE = HEAD
test-changed: $(TEST_NEEDS) ## the tests of the modules that differ from BASE=HEAD, and of their importers
	@files=$$($(BIN)/python -m tools.changed_tests --base "$(BASE)" $(if $(EXPLAIN),--explain)) && \
		{ [ -z "$$files" ] || $(PYTEST) $$files $(PYTEST_ARGS); }

test-bare: $(VENV)/.dev ## `make run` and `make test` of a clone in a bare Debian, as root: 20 minutes
	@BARE_SUITE=all $(PYTEST) --long tests/long/test_bare_debian.py $(PYTEST_ARGS)

# PATIENCE multiplies the time limits in tests: code under qemu takes about ten times as long.
test-arm64: WORKERS = 2
test-arm64: $(ARM64)/.installed ## the tests that depend on the architecture, under qemu with an arm64 Python
	@CC=aarch64-linux-gnu-gcc RUNNER="$(abspath $(ARM64))/bin/run" PATIENCE=8 $(ARM64)/bin/python -m pytest \
		$(PARALLEL) --timeout 300 $(ARM64_SUITE) $(PYTEST_ARGS)

crash: $(VENV)/.dev ## JOBS=100000 jobs under KILLS=5000 kills; not in the suite, takes hours
	@$(BIN)/python -m tests.crashes $(JOBS) $(KILLS)

soak: $(VENV)/.dev ## half an hour of mixed load; its curves go to SOAK_OUT
	@SOAK_OUT=$(SOAK_OUT) $(BIN)/python -m tests.crashes.soak $(SOAK_S)

check: check-fast $(TYPESCRIPT) ## format, lint, types, imports, dependencies, spelling, wording, Dockerfile, pages
	@$(BIN)/mypy $(CODE)
	@tools/javascript/node_modules/.bin/tsc --project tools/javascript
	@$(BIN)/deptry .
	@$(BIN)/hadolint Dockerfile
	@$(SITE)

check-fast: $(VENV)/.dev ## the parts of `make check` that take seconds
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python tools/stale_ignores.py
	@$(BIN)/python tools/module_names.py $(filter-out tools/docs,$(CODE)) tools
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/codespell
	@$(BIN)/python tools/plain_words.py $(PROSE)
	@$(BIN)/python tools/wall_clock.py tests

bench: $(VENV)/.dev $(BUILT_IN_MODEL) ## run the benchmarks and print their tables
	@$(BIN)/python -m benchmarks

docs: $(VENV)/.serve ## generate the reference pages in docs/ from the code
	@$(BIN)/python -m tools.docs.settings > docs/settings.md
	@$(BIN)/python -m tools.docs.validation > docs/validation.md
	@$(BIN)/python -m tools.docs.openai > docs/openai.md
	@$(BIN)/python -m tools.docs.metrics > docs/metrics.md

docs-site: $(VENV)/.dev ## build the pages as a site in build/site; warnings are errors
	@$(SITE)

screenshot: $(VENV)/.dev $(BUILT_IN_MODEL) ## take the pictures of the console in docs/, with Debian's package chromium
	@$(BIN)/python tools/screenshot.py $(or $(SCREENSHOT),docs/console.png)
	@$(BIN)/python tools/screenshot.py --handler $(or $(HANDLER_SCREENSHOT),docs/handler.png)

# In this order: serve.txt, vision.txt, sdk2.txt and dev.txt use the versions of run.txt, and
# arm64.txt those of dev.txt. uv keeps the versions that it finds in its output file, where it can.
lock: $(VENV)/.setup ## pin the packages in requirements/*.in (LOCK_ARGS=--upgrade: the newest that fit)
	@cd requirements && for name in setup run serve emulator vision servers clients node zig jq; do ../$(UV_LOCK) $$name.in -o $$name.txt >/dev/null || exit 1; done
	@cd requirements && cp run.txt sdk2.txt && ../$(UV_LOCK) ../pyproject.toml sdk2.in -o sdk2.txt >/dev/null
	@cd requirements && ../$(UV_LOCK) --override overrides.in dev.in -o dev.txt >/dev/null
	@cd requirements && ../$(UV_LOCK) arm64.in -o arm64.txt >/dev/null

clean: ## remove the environment, caches and build output; keeps models/
	@rm -rf $(VENV) $(SERVERS) $(SDK2) $(OLD_SDKS) $(PYTHON_CLIENTS) $(ARM64) tests/clients/node_modules tools/javascript/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build dist
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

$(VENV)/.setup: requirements/setup.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >&2 || { \
		echo 'Python 3.11, 3.12, 3.13 or 3.14 is needed, and "$(PYTHON)" is not: name one, as in `make run PYTHON=python3.13`.' >&2; exit 1; }
	@echo 'Setting up $(VENV)' >&2
	@$(PYTHON) -m venv --clear $(VENV) >&2 || { \
		echo '"$(PYTHON) -m venv" failed: on Debian and Ubuntu, `apt-get install python3-venv` installs it.' >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r $< >&2
	@touch $@

$(VENV)/.serve: requirements/serve.txt $(VENV)/.setup
	@echo 'Installing $<' >&2
	@$(UV_INSTALL) -r $< >&2
	@touch $@

$(VENV)/.vision: requirements/vision.txt $(VENV)/.serve
	@echo 'Installing $<' >&2
	@$(UV_INSTALL) -r $< >&2
	@touch $@

# run.txt contains all of serve.txt, and dev.txt all of run.txt: the largest install covers the others.
$(VENV)/.run: requirements/run.txt requirements/serve.txt $(VENV)/.setup
	@echo 'Installing $<' >&2
	@$(UV_INSTALL) -r $< >&2
	@touch $(VENV)/.serve $@

$(VENV)/.dev: requirements/dev.txt requirements/run.txt requirements/serve.txt $(VENV)/.setup
	@echo 'Installing $<' >&2
	@$(UV_INSTALL) -r $< >&2
	@touch $(VENV)/.serve $(VENV)/.run $@

# One process compiles the tests and what they import. All workers would do it, at the same time.
# The run itself reports a file that cannot be collected.
$(VENV)/.compiled: $(VENV)/.dev
	@$(PYTEST) --collect-only -qq >/dev/null 2>&1 || true
	@touch $@

$(BUILT_IN_MODEL): | $(VENV)/.serve
	@$(BIN)/python -m handler.models.default_model >&2

$(COMMANDS)/.installed: tests/commands/install.sh requirements/node.txt requirements/zig.txt requirements/jq.txt $(VENV)/.setup
	@$< $(VENV)
	@touch $@

$(CLIENTS): tests/clients/package.json tests/clients/package-lock.json | $(COMMANDS)/.installed
$(TYPESCRIPT): tools/javascript/package.json tools/javascript/package-lock.json | $(COMMANDS)/.installed
$(CLIENTS) $(TYPESCRIPT):
	@echo 'Installing $(<D)' >&2
	@npm ci --prefix $(<D) --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >&2
	@touch $@

$(SERVERS)/.installed: requirements/servers.txt $(VENV)/.setup
$(SDK2)/.installed: requirements/sdk2.txt $(VENV)/.setup
$(PYTHON_CLIENTS)/.installed: requirements/clients.txt $(VENV)/.setup
$(SERVERS)/.installed $(SDK2)/.installed $(PYTHON_CLIENTS)/.installed:
	@echo 'Installing $<' >&2
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D) >&2
	@$(BIN)/uv pip install --quiet --python $(@D)/bin/python --only-binary :all: --require-hashes --no-deps -r $< >&2
	@touch $@

# One call for each version, because an environment has only one of them.
$(OLD_SDKS)/.installed: requirements/old_sdks.txt $(VENV)/.setup
	@echo 'Installing $<' >&2
	@rm -rf $(@D)
	@grep -v '^#' $< | while read -r line; do \
		version=$${line#*==}; \
		echo "$$line" | $(UV_INSTALL) --target $(@D)/$${version%% *} -r - >&2 || exit 1; \
	done
	@touch $@

$(ARM64)/.sysroot: tests/arm64/sysroot.sh
	@echo 'Setting up $(ARM64)' >&2
	@$< $(ARM64) >&2
	@touch $@

$(ARM64)/.installed: requirements/arm64.txt $(ARM64)/.sysroot $(VENV)/.setup
	@echo 'Installing $<' >&2
	@rm -rf $(ARM64)/lib
	@version=$$(readlink $(ARM64)/sysroot/usr/bin/python3) && version=$${version#python} && \
		$(BIN)/uv pip install --quiet --only-binary :all: --require-hashes --no-deps --python-version $$version \
		--python-platform aarch64-manylinux_2_31 \
		--target $(ARM64)/lib/python$$version/site-packages -r $< >&2
	@touch $@
