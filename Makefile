# Two commands do everything on a fresh Linux machine with Python 3.10 to 3.12:
#   make demo    build, serve, stream, measure, stop
#   make test    lint, types and all tests, with a real Triton
.DELETE_ON_ERROR:
.PHONY: demo test lint types format clean help bench bench-sim bench-decision

VENV := .venv
BIN := $(VENV)/bin
CONTRACT ?= build_configs/smollm2-135m__int8-wo__cpu.yaml

# The first Python that trtkit supports; `make PYTHON=/path/to/python3.12 demo` chooses another.
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; break; }; done)

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.cpu
	$(BIN)/trtkit up $(CONTRACT) $(ARGS)

test: $(VENV)/.dev lint types
	$(BIN)/pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/trtkit export schema --check

types: $(VENV)/.dev
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: bench-decision bench-sim

# What the policy is worth in the model, and what one decision costs; tables, JSON and plots in bench-results/.
bench-sim: $(VENV)/.dev
	$(BIN)/python -m tests.bench.bench_sim $(ARGS)

bench-decision: $(VENV)/.dev
	$(BIN)/python -m tests.bench.bench_decision $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.10, 3.11 or 3.12 found; install one, or run: make PYTHON=/path/to/python3" >&2; exit 4; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot create virtual environments; on Debian: apt install python3-venv" >&2; exit 4; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.cpu: pyproject.toml | $(VENV)/bin/python
	@echo "installing trtkit with its CPU back end into $(VENV) (about 650 MB) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[cpu]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.cpu
	@echo "installing what the tests need ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[cpu,dev]'
	@touch $@
