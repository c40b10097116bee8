# Every target sets up .venv by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# TensorFlow waits ten idle seconds before it reports an OOM, so more workers than cores pay off.
WORKERS ?= 6

.DEFAULT_GOAL := help
.PHONY: help demo test check unit format bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## Run the main job end to end: plain Keras runs out, memfit trains
	$(BIN)/memfit demo

test: check  ## Run everything: lint, types, import order, all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(READY)  ## Run the fast part: lint, format, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)  ## Run only the tests that need no TensorFlow
	$(BIN)/python -m pytest -m "not real"

format: $(READY)  ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## Run one benchmark: make bench NAME=startup
	@test -n "$(NAME)" || { echo "Try: make bench NAME=$$(ls benchmarks/[a-z]*.py | xargs -n1 basename | sed 's/\.py$$//' | head -n 1)"; exit 2; }
	$(BIN)/python benchmarks/_environment.py $(NAME)
	$(BIN)/python benchmarks/$(NAME).py

clean:  ## Remove the virtual environment and all caches
	rm -rf $(VENV) .venv-bench-* build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else "memfit needs Python 3.11 to 3.13; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,test,dev]'
	@touch $@
