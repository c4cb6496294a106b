# Two commands do everything: `make demo` and `make test`. Each sets up .venv when it has to.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint types contracts suite kernels-interpreted browser-test clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	$(BIN)/staircase demo --overwrite

test: lint types contracts suite kernels-interpreted

# Reinstalled only when what it was installed from has changed.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, found {sys.version.split()[0]}: make PYTHON=python3.11"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,hf,bench]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

suite: $(STAMP)
	$(BIN)/python -m pytest

# The same kernel tests with the compiler off: a wrong type or index shows in one of the two.
kernels-interpreted: $(STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -m kernel

# The report in a real browser; Debian's chromium is installed when there is none.
browser-test: $(STAMP)
	command -v chromium || (apt-get update && apt-get install -y --no-install-recommends chromium fonts-noto-cjk)
	$(BIN)/python -m pytest tests/browser/check_report.py

clean:
	rm -rf $(VENV) demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
