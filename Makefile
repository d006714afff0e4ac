# Each target says what it does: `make help`. The work is done by the readable programs in scripts/.
# make PYTHON=/path/to/python3.12 … uses that Python for .venv; MINIRT_CACHE=… moves the weights.
SHELL := /bin/sh
BOOT := PYTHON="$(PYTHON)" sh scripts/python.sh scripts/bootstrap.py
PY := .venv/bin/python
# Empty folders and missing ones are no error while the course is being written.
UNIT := $(wildcard tests/unit tests/property tests/parity tests/exercises tests/gpu)
# Tests run in two processes of one thread each: torch threads only get in each other's way on shared cores.
JOBS := 2
ONE := OMP_NUM_THREADS=1
NB :=
ARGS :=
# Where this is set, each notebook's kernel would compile torch and transformers anew: 3 s that Python otherwise saves.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup lab test lint test-unit test-notebooks test-browser notebooks bench clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

setup: ## .venv, packages, weights; nothing where nothing is missing
	@$(BOOT) setup

lab: ## set up, then open JupyterLab on the first chapter (ARGS="--no-browser --port 8889")
	@$(BOOT) lab $(ARGS)

test: ## set up, then lint, unit, property and parity tests, then every notebook through nbval
	@$(BOOT) test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-notebooks

lint: setup ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m mypy

test-unit: setup ## unit, property and parity tests (ARGS="-k blocks")
	@$(ONE) $(PY) -m pytest $(UNIT) -m "not browser" -n $(JOBS) --dist loadfile $(ARGS)

test-notebooks: setup ## every notebook's saved outputs against a fresh run (NB=chapters/00_quickstart.ipynb)
	@$(ONE) $(PY) scripts/check_notebooks.py --nbval --jobs $(JOBS) $(NB)

test-browser: ## set up playwright and Chromium, then the tests that drive a real browser
	@$(BOOT) browser
	@if ls tests/browser/test_*.py >/dev/null 2>&1; then $(PY) -m pytest tests/browser -m browser $(ARGS); \
	else echo "minirt: no browser tests yet"; fi

notebooks: setup ## execute all notebooks in place and clean what changes from run to run (NB=…)
	@$(PY) scripts/run_notebooks.py $(NB)

bench: setup ## static against continuous against transformers, on this machine
	@$(PY) benchmarks/scenarios/baseline.py $(ARGS)

clean: ## remove .venv and what tools leave behind; the weights' cache stays
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis test-results setup.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
