# Every target sets up what it needs by itself: a fresh clone needs make and Python 3.11 or newer.
# uv is used where it is installed, else venv and pip. Versions are locked in requirements-dev.txt.

# The first of these that runs and is new enough (a name on PATH may be only a shim).
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV ?= .venv
PYTEST_ARGS ?=
# Tests mostly wait: for a ttl, a process, a server that is gone. Eight workers for a core let them wait side by side.
WORKERS = $(or $(JOBS),$(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 3 ? $(if $(ALL),4,8) * n : 12))))
# Hundreds of processes import the package: without its bytecode files each would compile it anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What builds the site has an environment of its own, and so have the frameworks and the matrix.
DOCS := .venv-docs
FRAMEWORKS := .venv-frameworks
TOX := .venv-tox
SOURCES := $(wildcard src lab sim tests testbed bench rig examples tools verify) $(if $(wildcard models/*.py),models)

.DEFAULT_GOAL := help
.PHONY: help setup servers prepared test test-thorough check generate format demo bench calls sim model mutants matrix docs frameworks release-check lock clean torture verify

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## the virtual environment alone

$(READY): requirements-dev.txt pyproject.toml lab/pyproject.toml
	@test -n "$(PYTHON)" || { echo "holdfast needs Python 3.11 or newer: none found on PATH (set PYTHON=…)" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON)"
	@if command -v uv >/dev/null 2>&1; then \
	    uv venv --quiet --allow-existing --python "$(PYTHON)" "$(VENV)" && \
	    uv pip install --quiet --python "$(BIN)/python" -r requirements-dev.txt && \
	    uv pip install --quiet --python "$(BIN)/python" --no-build-isolation --no-deps -e . -e ./lab; \
	else \
	    "$(PYTHON)" -m venv "$(VENV)" && \
	    "$(BIN)/python" -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt && \
	    "$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e . -e ./lab; \
	fi
	@touch "$@"

servers: $(READY) ## fetch Redict, Redis 8, Valkey 8 and twemproxy into .servers, for the tests (Debian's packages, amd64)
	@$(BIN)/python -m testbed.debian

PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Without this, each worker would prepare every file by itself (pytest rewrites their assertions).
prepared: $(VENV)/.prepared

$(VENV)/.prepared: $(READY) $(shell find tests lab/tests -name '*.py')
	@$(BIN)/python -m pytest --collect-only -q > /dev/null && touch "$@" || true

# With ALL=1, what computes and what waits takes less time together than one after the other.
test: $(READY) $(if $(PYTEST_ARGS),,prepared) ## the tests, in a few minutes (ALL=1: also the thorough ones; PYTEST_ARGS="-k name", JOBS=6)
	$(PYTEST) $(if $(ALL),,-m "not thorough") $(PYTEST_ARGS)

# These compute more than they wait, and five for a core overload it: what has a time of its own fails then.
test-thorough: WORKERS = $(or $(JOBS),$(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 4 ? 3 * n : 12))))
test-thorough: $(READY) ## what `make test` leaves out: long forms, and what repeats others
	$(PYTEST) -m thorough $(PYTEST_ARGS)

check: $(READY) ## style, types, imports between the modules, lengths, words, subjects of commits
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py tests/package/test_commits.py tests/package/test_budget.py tests/docs/test_words.py

generate: $(READY) ## write the threads API from the asyncio API
	$(BIN)/python tools/async_to_sync.py

format: $(READY) ## put the source into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(READY) ## the flash sale: processes taking turns on a real Valkey
	@$(BIN)/python -m examples.flash_sale

bench: $(READY) ## measure against the others, side by side
	@$(BIN)/python -m bench $(BENCH_ARGS)

calls: $(READY) ## how many functions an acquire, a release, a wait call
	@$(BIN)/python -m tools.calls

sim: $(READY) ## the simulation (SEEDS=A:B, MINUTES=1, JOBS=2, MODE=ordinary), a small world in every order, then what must break
	$(BIN)/python -m sim run --jobs $(or $(JOBS),2) --mode $(or $(MODE),ordinary) \
	    $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MINUTES),--minutes $(MINUTES))
	$(BIN)/python -m sim explore --faults lost,reset,crash,cancel
	$(BIN)/python -m sim modes

model: $(READY) ## the formal models, each assumption removed in turn (spin and gcc; spin is installed where apt-get is)
	@command -v spin >/dev/null || { apt-get update -qq && apt-get install -y -qq spin; } </dev/null
	$(BIN)/python -m models

mutants: $(READY) ## change protocol and scripts in many ways: the simulation has to notice each (JOBS=2)
	$(BIN)/python -m tests.mutants --jobs $(or $(JOBS),2) --known docs/evidence/mutants.md

torture: $(READY) ## real servers and processes, broken all the time (SECONDS=60 SEED=1 TOPOLOGY=single FAULTS=all LIBRARY=holdfast LOOPS=3 LOCKS=3)
	$(BIN)/python -m rig torture --seconds $(or $(SECONDS),120) --seed $(or $(SEED),1) \
	    --topology $(or $(TOPOLOGY),single) --library $(or $(LIBRARY),holdfast) \
	    --loops $(or $(LOOPS),3) --locks $(or $(LOCKS),3) $(if $(FAULTS),--faults $(FAULTS))

verify: ## judge all histories in verify/histories: ours have to hold, those of other libraries must not
	"$(PYTHON)" -m verify

matrix: $(TOX)/.ready ## part of the tests on each Python and each version of the clients that is supported (ONLY=oldest)
	PATH="$$PATH$$(printf ':%s' "$$HOME"/.pyenv/versions/3.*/bin)" $(TOX)/bin/tox run $(if $(ONLY),-e "$(ONLY)")

# The tests' own tools are those of the lock, and the clients are what the rows say.
$(TOX)/.ready: requirements-dev.txt
	"$(PYTHON)" -m venv $(TOX)
	$(TOX)/bin/python -m pip install --quiet --disable-pip-version-check tox==4.67.15
	grep -vE '^(redis|hiredis|valkey)==' requirements-dev.txt > $(TOX)/pinned.txt
	@touch "$@"

docs: $(READY) $(DOCS)/.ready ## the documentation site, in site/; a warning is an error, and so is a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m tools.docs_site --mkdocs $(DOCS)/bin/mkdocs
	BUILT_SITE=site $(BIN)/python -m pytest -q tests/docs/test_built_site.py

$(DOCS)/.ready: requirements-docs.txt
	"$(PYTHON)" -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch "$@"

frameworks: $(FRAMEWORKS)/.ready ## the examples for frameworks, against the real ones (PYTEST_ARGS="-k celery")
	$(FRAMEWORKS)/bin/python -m pytest -n $(or $(JOBS),2) --dist loadfile -o cache_dir=.pytest_cache/frameworks tests/frameworks $(PYTEST_ARGS)

$(FRAMEWORKS)/.ready: requirements-frameworks.txt pyproject.toml
	"$(PYTHON)" -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-frameworks.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch "$@"

release-check: $(READY) ## all of a release but the upload: sdist and wheel in dist/, looked at, installed, used
	$(BIN)/python tools/release.py

lock: ## resolve requirements-dev.in and requirements-frameworks.in again
	for each in dev frameworks; do \
	    rm -rf .venv-lock && "$(PYTHON)" -m venv .venv-lock && \
	    .venv-lock/bin/python -m pip install --quiet -r requirements-$$each.in setuptools && \
	    sed -n 's/^# --no-deps //p' requirements-$$each.in | xargs -r .venv-lock/bin/python -m pip install --quiet --no-deps && \
	    { echo "# Made by \`make lock\` from requirements-$$each.in. Do not edit."; \
	      .venv-lock/bin/python -m pip freeze --all | grep -v '^pip=='; } > requirements-$$each.txt || exit 1; \
	done
	rm -rf .venv-lock

clean: ## forget environment and caches
	rm -rf "$(VENV)" "$(DOCS)" "$(FRAMEWORKS)" "$(TOX)" .tox site .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
