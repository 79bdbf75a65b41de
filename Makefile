# Two commands for a newcomer: `make tune` and `make test`. Both make `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

.PHONY: setup tune test check docs clean

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

docs: setup
	$(BIN)/python -c 'import material, mkdocstrings' 2> /dev/null || $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt 'mkdocs-material>=9.6' 'mkdocstrings[python]>=0.29'
	$(BIN)/python -m scripts.docs
	$(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) .triton site
