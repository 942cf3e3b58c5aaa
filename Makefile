# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help

help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY) ## Create the environment in .venv and install gradopt into it

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gradopt needs Python 3.11 or newer, found " + sys.version.split()[0])'
	@echo "installing gradopt and its tools into $(VENV) (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable '.[dev,examples]'
	@touch $@

demo: $(READY) ## Train on handwritten digits, export, and run the artifact without gradopt
	@$(BIN)/python examples/digits.py --out out/digits
	@$(BIN)/python examples/digits_infer.py out/digits

test: $(READY) ## Run all tests, those that need nothing first
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not compiler"
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m compiler

lint: $(READY) ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

format: $(READY) ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove the environment and what the examples wrote
	rm -rf $(VENV) out

.PHONY: help env demo test lint format clean
