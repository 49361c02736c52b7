# `make demo` and `make test` each do all the set-up on a machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(VENV)/.lab
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: help demo run report bench test test-slow check lint docs wheel clean

help:
	@echo "make demo   train a linear classifier and Neurocoders on MNIST, print a table, save a figure"
	@echo "make run    train an experiment; name and options in ARGS, e.g. ARGS='digits --preset smoke --output /tmp/smoke'"
	@echo "make report build tables and figures from the records; options in ARGS, e.g. ARGS='--records /tmp/smoke --target /tmp/page'"
	@echo "make bench  benchmark program layers against plain ones; options in ARGS, e.g. ARGS=--quick"
	@echo "make test   lint and run all tests but those of test-slow"
	@echo "make test-slow  the longest tests: agents that learn, more interrupted sweeps, more cases of kernels"
	@echo "make check  lint and run the quick tests of equations, layers and surgery, in about a minute"
	@echo "make lint   ruff and mypy"
	@echo "make docs   build the site, offline, into docs/_build/html"
	@echo "make wheel  build sdist and wheel into dist, install the wheel into an empty environment, try it"
	@echo "make clean  remove the virtual environment and caches"

$(LAB): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neurocoder needs Python 3.11 or newer")'
	@echo "Installing neurocoder and what it needs to run into $(VENV), once"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[lab]'
	@touch $@

$(INSTALLED): $(LAB)
	@echo "Installing what its tests and documentation need into $(VENV), once"
	$(PIP) -e '.[lab,rl,dev]'
	@touch $@

demo: $(LAB)
	$(BIN)/neurocoder demo

run: $(INSTALLED)
	$(BIN)/neurocoder run $(ARGS)

report: $(LAB)
	$(BIN)/neurocoder report $(ARGS)

bench: $(LAB)
	$(BIN)/neurocoder bench $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 -m 'not long'

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -s -m long

check: lint
	$(BIN)/python -m pytest -n 2 -m 'not slow and not long' --ignore=tests/lab --ignore=tests/clients --ignore-glob='tests/test_kernels*' --ignore=tests/test_side_streams.py

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

wheel: $(INSTALLED)
	rm -rf dist build
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/python tests/release.py dist

clean:
	rm -rf $(VENV) docs/_build dist build .mypy_cache .ruff_cache .pytest_cache
