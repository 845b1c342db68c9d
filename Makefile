# Everything runs in .venv, which is made from requirements.txt and made up to date when that file changes.
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.installed

# make report CASES=my.yaml MODEL=builtin:gemma3-270m OUT=runs/mine ARGS="--language en"
CASES := relations
MODEL := builtin:e5-small
OUT := runs/$(basename $(notdir $(CASES)))
ARGS :=

# The oldest transformers that is promised; it stands in pyproject.toml and nowhere else.
FLOOR := $(shell sed -n 's/.*"transformers>=\([0-9.]*\).*/\1/p' pyproject.toml)
FLOOR_READY := .floor/.transformers-$(FLOOR)
FLOOR_TESTS := $(wildcard $(addprefix tests/test_,$(addsuffix .py,\
	spans cases models rowtap capture selfcheck generation long_texts families projection wrappers export)))

.PHONY: help setup report test lint format types notebooks floor clean

help:
	@echo "make report     set up .venv and write a report of CASES ($(CASES)) with MODEL ($(MODEL)) to OUT ($(OUT))"
	@echo "make test       set up .venv and run the tests"
	@echo "make lint       ruff: rules and layout;  make format mends the layout"
	@echo "make types      mypy, strict"
	@echo "make notebooks  run every notebook as CI does (small presets), without changing the files"
	@echo "make floor      the model tests with transformers $(FLOOR), the oldest that is supported"
	@echo "make clean      remove .venv and caches (runs/ stays)"

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH; name a Python 3.11: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "setting up .venv from requirements.txt; this takes some minutes, once"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

report: $(READY)
	$(BIN)/python -m probe report "$(CASES)" --model "$(MODEL)" --out "$(OUT)" --force $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

notebooks: $(READY)
	$(BIN)/python notebooks/run.py

$(FLOOR_READY): $(READY)
	rm -rf .floor
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .floor "transformers==$(FLOOR)"
	@touch $@

floor: $(FLOOR_READY)
	@PYTHONPATH=.floor $(BIN)/python -c "import transformers; print('transformers', transformers.__version__)"
	PYTHONPATH=.floor $(BIN)/python -m pytest -n auto --dist loadfile $(FLOOR_TESTS) $(ARGS)

clean:
	rm -rf .venv .floor build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find probe finetune tests -name __pycache__ -type d -prune -exec rm -rf {} +
