# linnet: set-up, checks, tests, the demo. Every target does the set-up that it needs; `make help` lists them.
#
#   VENV=.venv        the folder of the virtual environment
#   PYTHON=python3.12 the Python that makes it (default: the first suitable one on the PATH)
#   TORCH=cpu|cuda    which build of PyTorch (default: on Linux without an NVIDIA GPU the CPU build, else that of PyPI)
#   PIP_FLAGS=...     passed to every `pip install`

VENV ?= .venv
PIP_FLAGS ?=
TORCH ?=
RUN := $(VENV)/bin/python -m
CORE := $(VENV)/.core
STAMP := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help venv install demo test test-slow campaign mutate check docs format presets bench gpu

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

venv: $(STAMP) ## the virtual environment, with every dependency as pinned

install: $(CORE) ## the same with what running linnet needs, without the tools for tests and documentation

demo: $(CORE) ## train and compare three tiny models (minutes)
	$(RUN) linnet demo

# Byte code is kept whatever the environment says; otherwise each worker, and each process that a test starts, compiles
# the sources again.
test: $(STAMP) ## all tests but the slow ones
	PYTHONDONTWRITEBYTECODE= $(RUN) pytest -n logical --maxprocesses 4

test-slow: $(STAMP) ## the tests that take minutes each
	PYTHONDONTWRITEBYTECODE= $(RUN) pytest -m slow

campaign: $(STAMP) ## kills, damaged and hostile files, faults: an hour; writes its counts into docs/reliability.md
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/campaigns --record

mutate: $(STAMP) ## edits of layers and operations that no test notices: MUTATE='--only mamba2 --sample 20'
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/campaigns/mutate.py $(MUTATE)

check: $(STAMP) ## lint, format, types, and the import rules
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports

docs: $(STAMP) ## the documentation as a site: build/site/index.html
	$(RUN) sphinx -W --keep-going -q -c docs . build/site

bench: $(STAMP) ## every benchmark; nothing else should run on the machine (minutes)
	for script in training_step greedy_decode decode_state decode_bandwidth pldr_decode pldr_training_step ted_training_step ted_attention ted_decode plan_fit design design_milp start_up block_hashes ngram data harness_tasks; do $(VENV)/bin/python benchmarks/$$script.py || exit 1; done

gpu: $(STAMP) ## with a GPU: contract tests on it, tables of training and decoding (under ten minutes)
	$(VENV)/bin/python benchmarks/gpu.py

presets: $(STAMP) ## the index that `linnet spec list` reads, after a preset or a layer's cost has changed
	$(VENV)/bin/python -c 'from linnet.cli.spec import write_index; write_index()'

format: $(STAMP) ## rewrite the sources as `check` expects them
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# A stamp is written last, so an interrupted set-up does not count as a complete one.
SET_UP = PYTHON='$(PYTHON)' PIP_FLAGS='$(PIP_FLAGS)' TORCH='$(TORCH)' sh .ci/set-up $(VENV)

$(CORE): pyproject.toml constraints.txt
	@$(SET_UP)
	@touch $@

$(STAMP): pyproject.toml constraints.txt
	@$(SET_UP) dev
	@touch $(CORE) $@
