# Every target sets up .venv first, when it is absent or when pyproject.toml or
# constraints.txt changed. Needs Python 3.11 or newer (choose one with
# `make PYTHON=python3.12 test`), nothing else.

PYTHON ?= python3
VENV ?= .venv
# Each process has its half of the files, whose fixtures are then made once, and takes from the other in the end.
PYTEST_ARGS ?= -n 2 --dist worksteal

BIN := $(VENV)/bin
STAMP := $(VENV)/.torchlift-installed

# pyright and its node come as wheels (see CONTRIBUTING.md); this stops it from
# asking the network for a newer version.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types pytest docs gallery audit mutants clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e ".[test,plot,docs]"
	@touch $@

demo: ## Set up with what it needs, and show what the package does on bundled data
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/torchlift || $(BIN)/python -m pip install -c constraints.txt -e .
	$(BIN)/torchlift demo

test: lint types pytest ## Set up, then lint, type check and run all tests

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## Check types
	@$(BIN)/pyright --version > /dev/null || \
		{ echo "make types: pyright did not start; see 'Type checker' in CONTRIBUTING.md" >&2; exit 1; }
	$(BIN)/pyright --pythonpath $(BIN)/python

pytest: $(STAMP) ## Run the tests only, e.g. make pytest PYTEST_ARGS="-n 2 tests/imaging"
	$(BIN)/pytest $(PYTEST_ARGS)

docs: $(STAMP) ## Build the documentation into site/; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gallery: $(STAMP) ## Run the examples at full size and keep what they show for the documentation
	OMP_NUM_THREADS=1 $(BIN)/python docs/build.py

audit: ## Compare the pinned versions with the database of known vulnerabilities (needs the network)
	test -x build/audit/bin/pip-audit || \
		{ $(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install "pip-audit>=2.7"; }
	build/audit/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

mutants: $(STAMP) ## Make small faults in prox, liftings and solvers and count those that the tests notice
	$(BIN)/python scripts/mutants.py $(MUTANTS_ARGS)

format: $(STAMP) ## Format the code and fix what can be fixed automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Run the parts of `test` in order even under `make -j`: pytest closes the output.
.NOTPARALLEL:
