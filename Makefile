# linnet: set-up, checks, tests, the demo. Every target does the set-up that it needs; `make help` lists them.
#
#   VENV=.venv        where the virtual environment goes
#   PYTHON=python3.12 the Python to make it with (found by itself where not given)
#   PIP_FLAGS=...     passed to every `pip install`. On Linux with an x86 processor PyPI's torch brings CUDA along
#                     (gigabytes); for the small build, without it:
#                     make venv PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"

VENV ?= .venv
PIP_FLAGS ?=
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/.complete

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow campaign check docs format bench gpu

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

venv: $(STAMP) ## the virtual environment, with every dependency as pinned

demo: $(STAMP) ## train and compare three tiny models (minutes)
	$(RUN) linnet demo

# Byte code is kept whatever the environment says: else each worker, and each process that tests start, compiles the
# sources anew.
test: $(STAMP) ## all tests but the slow ones
	PYTHONDONTWRITEBYTECODE= $(RUN) pytest -n logical --maxprocesses 4

test-slow: $(STAMP) ## the tests that take minutes each
	PYTHONDONTWRITEBYTECODE= $(RUN) pytest -m slow

campaign: $(STAMP) ## kills, damaged and hostile files, faults: an hour; counts into docs/reliability.md
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/campaigns --record

check: $(STAMP) ## lint, format, types, and which room may import which
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports

docs: $(STAMP) ## the documentation as a site: build/site/index.html
	$(RUN) sphinx -W --keep-going -q -c docs . build/site

bench: $(STAMP) ## every benchmark, alone on the machine (minutes)
	for script in training_step greedy_decode decode_state decode_bandwidth pldr_decode pldr_training_step ted_training_step ted_attention ted_decode plan_fit design design_milp start_up block_hashes ngram harness_tasks; do $(VENV)/bin/python benchmarks/$$script.py || exit 1; done

gpu: $(STAMP) ## with a GPU: contract tests on it, tables of training and decoding (under ten minutes)
	$(VENV)/bin/python benchmarks/gpu.py

format: $(STAMP) ## rewrite the sources as `check` wants them
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# The stamp is written last: an interrupted set-up is never taken for a complete one.
$(STAMP): pyproject.toml constraints.txt
	@PYTHON='$(PYTHON)' PIP_FLAGS='$(PIP_FLAGS)' sh .ci/set-up $(VENV)
	@touch $@
