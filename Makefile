# Two commands for a newcomer: `make tune` and `make test`. Both make `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE

.PHONY: setup tune test test-again coverage check docs wheel front chaos fuzz soak clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt scripts/setup.py
	$(PYTHON) -m scripts.setup $(VENV)
	touch $@

# `make tune ARGS="--arrivals bursts"` passes options on.
tune: setup
	$(BIN)/rrl-tune $(ARGS)

# Each file of tests stays in one process, and so does the real Triton: see tests/support/sharing.py.
test: setup
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(COUNTED)

# What failed, once more, and nothing beside it.
test-again: setup
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# The same tests, with the lines counted that they reach; slower where Python itself works hard.
coverage: COUNTED := --cov --cov-report term
coverage: test

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python -m scripts.docs
	$(BIN)/mkdocs build --quiet --strict

# A wheel and a source distribution in dist/, checked as a package index would.
wheel: setup
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# The machines of robustness at full size. `make chaos ARGS="--changes 100 --kills 100"` passes options on.
front chaos fuzz soak: setup
	$(BIN)/python -m scripts.robustness $@ $(ARGS)

clean:
	rm -rf $(VENV) .triton site
