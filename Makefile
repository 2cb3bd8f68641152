# Every target makes its own virtual environment. Needs python3 (3.11 or later) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/demo
	$(BIN)/langevin demo mixture

test: lint
	$(BIN)/pytest -n 2

lint: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check

bench: $(VENV)/bench
	$(BIN)/python benchmarks/run.py

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demos]'
	touch $@

$(VENV)/test: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/bench: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .hypothesis
