# Every target makes .venv where it is missing and reuses it later. "make demo" installs only the
# package; the other targets add what tests, checks and pages need.
# PYTHON=python3.12 make … chooses the interpreter of a new .venv ("make clean" removes an old one).
# CONSTRAINTS= make … installs the newest dependencies.

PYTHON ?= python3
WORKERS ?= 2
SOAK ?= 1
CONSTRAINTS ?= -c constraints.txt
VENV := .venv
RUN := $(VENV)/bin/python
BASE := $(VENV)/.base
FULL := $(VENV)/.full
EXTRAS := dev,torchrl,benchmarl,pettingzoo,gymnasium,onnx,geo,data,fly,slurm,docs
SCRIPTS := train_with_backup.sh .ci/run
BENCHMARKS := speed.transformations speed.rollout speed.training speed.wrappers speed.scaling speed.ranks \
  speed.utilisation

.DEFAULT_GOAL := help
.PHONY: help venv demo test fast soak autopilots lint type bench tables gpu docs clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 8

venv: $(FULL) ## make .venv with all tested versions

demo: $(BASE) ## train on a measured elevation map, then compare with random flight
	@name=demo-$$(date -u +%Y%m%dT%H%M%SZ) && \
	$(RUN) -m marl_framework.main --config params_demo.yaml --run-name $$name && \
	$(RUN) -m marl_framework.evaluate --checkpoint runs/$$name --policies learned,random \
	  --missions 100 --seed 10001 --out runs/$$name/evaluation

test: $(FULL) ## lint, type and the fast tests (6 minutes on two cores)
	@$(MAKE) --no-print-directory -j2 lint type fast

# Files share set-ups; tests/conftest.py has those that take longest begin.
fast: lint
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

soak: $(FULL) ## the slow tests: kills, hostile commands, long kernels (SOAK=100 runs for hours)
	SOAK=$(SOAK) $(RUN) -m pytest -m soak -n $(WORKERS) --dist worksteal

autopilots: $(FULL) ## fly with autopilots' programs, ARDUCOPTER=…/arducopter PX4=…/bin/px4 (an hour)
	$(RUN) -m pytest -m autopilots -n 0 -s tests/autopilots

lint: $(FULL) ## ruff (rules and format) and shellcheck
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/shellcheck $(SCRIPTS)

type: $(FULL) ## mypy
	$(RUN) -m mypy

bench: $(FULL) ## the benchmarks that take minutes on a CPU (BENCHMARKS); each prints a table, writes JSON
	@set -e; for name in $(BENCHMARKS); do $(RUN) -m benchmarks.$$name; done

tables: $(FULL) ## write the tables of README and docs/ from benchmarks/results/
	$(RUN) -m benchmarks.tables

gpu: ## on a machine with a GPU: check and measure all that needs one (uses RUN)
	$(if $(wildcard $(RUN)),$(RUN),$(PYTHON)) -m benchmarks.gpu

docs: $(FULL) ## pages and API reference in site/; a warning is an error
	$(RUN) -m mkdocs build --strict

clean: ## remove .venv and caches; runs and their history stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build site *.egg-info
	find marl_framework benchmarks tests -name __pycache__ -prune -exec rm -rf {} +

# Each stamp is written last: after an interruption the next make installs again.
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is not Python 3.11 or newer; choose one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@rm -f $(BASE) $(FULL)
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install $(CONSTRAINTS) -e .
	@touch $@

$(FULL): $(BASE)
	@rm -f $@
	$(RUN) -m pip install $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@
