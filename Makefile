# Two commands for a newcomer: `make tune` and `make test`. Both make `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

.PHONY: setup tune test check clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt scripts/setup.py
	$(PYTHON) -m scripts.setup $(VENV)
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
