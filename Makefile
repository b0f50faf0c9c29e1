# Two commands do everything on a fresh Linux machine with Python 3.10 to 3.12:
#   make demo    build, serve, stream, measure, stop
#   make test    lint, types and all tests, with a real Triton
# A third one compiles TensorRT engines, and needs no GPU for it:
#   make engine    SmolLM2 in each format: size, KL, targets, time; ARGS="--weights fp8" for one of them
# Benchmarks print a table, write JSON and a chart to build/bench/, and fail when a goal is missed:
#   make bench    what the proxy's policy is worth on modelled engines, and what one decision costs
#   make bench-convert    conversions against cp; ARGS=--quick for small models
#   make bench-compile    checkpoint to ONNX graph to TensorRT engine: CPU time and memory
#   make bench-goodput    promises kept under load on the real stack, with the proxy and without (40 minutes; ARGS='--ablations 0' 20)
# The catalog's table of step times is made from NVIDIA's aiconfigurator, in an environment of its own (850 MB):
#   make silicon    about half an hour; prints where the roofline parts from it
# One test wants NVIDIA's exporter of TensorRT Edge-LLM, which needs an environment of its own (1.8 GB):
#   make edgellm-env      once; then make test ARGS=tests/edgellm
.DELETE_ON_ERROR:
.PHONY: demo engine test lint types format bench bench-compile bench-convert bench-decision bench-goodput bench-sim edgellm-env silicon silicon-env clean help

VENV := .venv
BIN := $(VENV)/bin
EDGELLM := .venv-edgellm
SILICON := .venv-silicon
CONTRACT ?= build_configs/smollm2-135m__int8-wo-kv_auto__cpu.yaml

# The first Python that trtkit supports; `make PYTHON=/path/to/python3.12 demo` chooses another.
SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; break; }; done)

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.cpu
	$(BIN)/trtkit up $(CONTRACT) $(ARGS)

engine: $(VENV)/.engine
	$(BIN)/python tests/bench/engine_table.py $(ARGS)

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

bench-convert: $(VENV)/.dev
	$(BIN)/python tests/bench/bench_convert.py $(ARGS)

# What the proxy's policy is worth in a model of engines, and what one decision costs.
bench: bench-decision bench-sim

bench-compile: $(VENV)/.dev
	$(BIN)/python tests/bench/bench_compile.py $(ARGS)

bench-decision: $(VENV)/.dev
	$(BIN)/python tests/bench/bench_decision.py $(ARGS)

bench-sim: $(VENV)/.dev
	$(BIN)/python tests/bench/bench_sim.py $(ARGS)

bench-goodput: $(VENV)/.dev
	$(BIN)/python tests/bench/bench_goodput.py $(ARGS)

edgellm-env: $(EDGELLM)/.done

silicon: $(VENV)/.dev $(SILICON)/.done
	TRTKIT_AICONFIGURATOR=$(SILICON)/bin/python $(BIN)/python tests/bench/silicon_table.py

silicon-env: $(SILICON)/.done

clean:
	rm -rf $(VENV) $(EDGELLM) $(SILICON) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

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

$(VENV)/.engine: pyproject.toml | $(VENV)/.cpu
	@echo "installing TensorRT for RTX (350 MB, under NVIDIA's licence) and what calibrates (torch) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[cpu,calib,rtx]'
	@touch $@

# Torch first: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu finds the build without CUDA.
$(EDGELLM)/.done: | $(VENV)/bin/python
	@echo "installing TensorRT Edge-LLM's exporter into $(EDGELLM) (about 1.8 GB) ..."
	@$(BIN)/python -m venv $(EDGELLM)
	@$(EDGELLM)/bin/pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	@$(EDGELLM)/bin/pip install --quiet --disable-pip-version-check 'tensorrt-edgellm[export]==0.11.0'
	@touch $@

# Python 3.11 to 3.13; pinned, since the distribution is about to be renamed.
$(SILICON)/.done: | $(VENV)/bin/python
	@echo "installing aiconfigurator into $(SILICON) (about 850 MB) ..."
	@$(BIN)/python -m venv $(SILICON)
	@$(SILICON)/bin/pip install --quiet --disable-pip-version-check aiconfigurator==0.12.0 aiconfigurator-core==0.12.0
	@touch $@
