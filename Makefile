# make run    set up what is needed, then the showcase; its output is in build/showcase/
# make test   all checks: format, lint, types, layers, tests
# make bench  compare with the peers on this machine (downloads PyTorch the first time)
#
# PYTHON=python3.12 chooses the Python that .venv is made from, JOBS=4 the number of test processes.

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
FILES_ONLY := --no-deps --ignore-requires-python  # for packages of which only data files are wanted

.PHONY: help run test bench format clean check-format check-lint check-types check-layers check-tests
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

run: $(VENV)/.run
	@mkdir -p build/showcase
	$(BIN)/python examples/showcase.py

# One after the other, cheapest first; the first that fails ends the run.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory check-format
	@$(MAKE) --no-print-directory check-lint
	@$(MAKE) --no-print-directory check-types
	@$(MAKE) --no-print-directory check-layers
	@$(MAKE) --no-print-directory check-tests

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py

check-format: $(VENV)/.dev
	$(BIN)/ruff format --check .

check-lint: $(VENV)/.dev
	$(BIN)/ruff check .

check-types: $(VENV)/.dev
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

check-layers: $(VENV)/.dev
	$(BIN)/lint-imports

check-tests: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Set-up. Each stamp stands for one state of .venv and is newer than the files that ask for it.

$(VENV)/.made: scripts/make_venv.sh
	@echo "making $(VENV)"
	@scripts/make_venv.sh "$(PYTHON)" $(VENV)
	@touch $@

$(VENV)/.run: pyproject.toml examples/showcase-packages.txt $(VENV)/.made
	@echo "installing Stitchwork and what its showcase needs in $(VENV)"
	@$(PIP) install --editable ".[showcase]"
	@$(PIP) install $(FILES_ONLY) --requirement examples/showcase-packages.txt
	@touch $@

$(VENV)/.dev: pyproject.toml examples/showcase-packages.txt tests/model-packages.txt $(VENV)/.made
	@echo "installing Stitchwork and all that its tests need in $(VENV); minutes, the first time"
	@$(PIP) install --editable ".[dev]"
	@$(PIP) install $(FILES_ONLY) --requirement tests/model-packages.txt
	@touch $(VENV)/.run $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "installing the peers to compare with in $(VENV); PyTorch is large"
	@$(PIP) install --editable ".[bench]"
	@touch $@
