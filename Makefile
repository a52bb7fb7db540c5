# From a fresh clone: `make run` serves the bundled model, `make test` runs the tests.
# Both need Python >= 3.10, a C++ compiler and make; everything else is fetched into .venv and the
# user's cache directory.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Bytes that the packages, the build and compiled code take, and what is unpacked on the way.
ROOM     ?= 1000000000
TMP_ROOM ?= 300000000
CACHE    := $(or $(UMA_CACHE_DIR),$(XDG_CACHE_HOME),$(HOME))
# What pip says goes to the log of `make run`, and is not shown elsewhere.
PIP_QUIET ?= -q
GOAL      ?= $(MAKECMDGOALS)
# Tests at a time: more than two cores, since most wait for processes.  A file is one worker's, since
# its tests share daemons.
JOBS   ?= 3
# Of the slow tests, some of which need a core while they measure.
SLOW_JOBS ?= 2

# Where Python is told to keep no bytecode, each of hundreds of processes would compile the modules
# that it imports: a quarter of the processor time in which an engine starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-slow test-clients test-real bench lint wheel setup setup-test llama lock clean help

help: ## list the targets
	@awk '/^[a-z-]+:.*## / { name = $$0; sub(/:.*/, "", name); sub(/.*## /, ""); \
	  printf "  make %-14s%s\n", name, $$0 }' $(MAKEFILE_LIST)

run: ## build what is missing, then serve (ARGS="--model file.gguf" to pass flags)
	@$(PYTHON) -m tools.first_start $(VENV)/make-run.log $(MAKE_COMMAND)
	@exec $(BIN)/python -m tools.run $(ARGS)

# Several tests share the cores, and some wait for processes.  Those that fail are run once more,
# alone; a run passes where they pass then, and says which they were.
define run_tests
	@$(BIN)/python -m pytest -n $(1) --dist loadfile --durations 30 -m $(2) $(ARGS) || { \
	  status=$$?; [ $$status = 1 ] || exit $$status; \
	  echo "The tests that failed are run once more, alone."; \
	  exec $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -v -m $(2) $(ARGS); }
endef

test: setup-test llama ## build what is missing, then run the tests (ARGS="-k name" to pass flags)
	$(call run_tests,$(JOBS),"not slow and not clients and not real")

test-slow: setup-test llama ## the tests that take longer, such as `make run` in a fresh clone
	$(call run_tests,$(SLOW_JOBS),"slow and not clients and not real")

test-clients: setup-test llama ## programs that others wrote, over HTTP, each as its registry has it
	@$(BIN)/python -m pip install $(PIP_QUIET) --disable-pip-version-check --require-hashes --only-binary :all: -r tests/clients/clients.lock
	@$(BIN)/python -m tests.support.client_venvs
	@$(BIN)/python -m tests.support.npm_clients
	@exec $(BIN)/python -m pytest -m clients $(ARGS)

test-real: setup-test llama ## a real language model of 253 MB and an embedder of 84, beside llama-server
	@$(BIN)/python build_llama.py --with-peers
	@$(BIN)/python -m tests.support.real_model
	@$(BIN)/python -m tests.support.real_embedder
	@exec $(BIN)/python -m pytest -m real $(ARGS)

bench: setup-test ## the reproducible overhead benchmarks
	@$(BIN)/python build_llama.py --with-peers
	@$(BIN)/python -m pytest benchmarks --benchmark-only $(ARGS)
	@exec $(BIN)/python -m benchmarks.report --tables

lint: setup-test ## ruff, mypy, what is too long, and the workflows
	$(BIN)/python -m ruff check .
	$(BIN)/python -m tools.long_parts
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/problem.yml
	@if command -v actionlint >/dev/null; then actionlint; else echo "no actionlint on PATH: the schema alone was checked"; fi
	$(BIN)/python -m mypy

wheel: setup ## the package as a wheel, in dist/
	@$(BIN)/python -m pip wheel --disable-pip-version-check --no-index --no-deps --no-build-isolation --wheel-dir dist .

setup: $(VENV)/.ready ## virtual environment and what the daemon needs

setup-test: $(VENV)/.ready-test ## and what the tests, the benchmarks and the lint need

llama: setup ## libllama and its binding (nothing to do when they are in the cache)
	@$(BIN)/python build_llama.py --quiet --with-samplers
	@$(BIN)/python -m umaserve.engine.start.compile
	@$(BIN)/python build_llama.py --quiet --with-eyes || echo "uma-eyes was not built: models read no pictures"

lock: setup ## pin the Python packages anew after a change of pyproject.toml (ARGS=--upgrade: newest)
	@$(BIN)/python -m tools.lock $(ARGS)

# Nothing is installed that has not the hash in the lock file. Only wheels are taken: what builds
# others would come without a hash.
define install
@$(BIN)/python -m pip install $(PIP_QUIET) --disable-pip-version-check --require-hashes --only-binary :all: -r $(1) || \
  { echo "The packages of $(1) were not installed. Where pip says that hashes do not match, look at which"; \
    echo "package index it uses. Where it finds no version, try another Python: make PYTHON=python3.12 $(GOAL)"; exit 1; }
endef

# The last install fetches nothing.
$(VENV)/.ready: pyproject.toml requirements.lock
	@echo "setting up $(VENV) (Python packages)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(GOAL)"; exit 1; }
	@$(PYTHON) -m tools.room $(ROOM) "$(CURDIR)" "$(CACHE)"
	@$(PYTHON) -m tools.room $(TMP_ROOM) "$(or $(TMPDIR),/tmp)"
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python -m venv failed; on Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(call install,requirements.lock)
	@$(BIN)/python -m pip install $(PIP_QUIET) --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready requirements-test.lock
	@echo "setting up $(VENV) (packages of the tests)"
	$(call install,requirements-test.lock)
	@touch $@

clean: ## remove the virtual environment (the library cache stays)
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
