# Everything here sets up what it needs: a virtual environment with pinned dependencies, and the few system packages
# that some fault tests use. The second run starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check lint types sizes bench torture judges format clean

help:
	@echo "make demo      see the promise: an agent is killed three times, and does nothing twice"
	@echo "make test      all quick tests (about four minutes on two cores)"
	@echo "make check     lint, format, types, import directions; prints the size of the code and the length of its paths"
	@echo "make bench     the speed bars, as ratios against raw SQLite in the same run"
	@echo "make torture   the long fault runs (TORTURE_SEED=n repeats one)"
	@echo "make judges    the model layer against servers that others wrote, and a real model (installs them once)"

$(READY): pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/shop.py $(ARGS)

# Without bytecode every worker would compile every test, and every process of a test the whole package.
test torture: export PYTHONDONTWRITEBYTECODE :=

test: $(READY)
	@scripts/system-packages
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m "not torture and not judges" tests

# The types take about a minute of one processor, and all the rest finishes on another one meanwhile.
check: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types lint sizes

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/unit/test_import_directions.py

types: $(READY)
	$(BIN)/basedpyright --warnings

sizes: $(READY)
	@$(BIN)/python scripts/walk --size
	@$(BIN)/python scripts/walk

bench: $(READY)
	@$(BIN)/python benchmarks/run.py $(ARGS)

torture: $(READY)
	@scripts/system-packages
	$(BIN)/python -m pytest -q -s -m torture tests
	$(BIN)/python -m pytest -q -m "hypothesis and not torture" --hypothesis-profile whole tests

judges: $(READY)
	@PYTHON="$(PYTHON)" scripts/judges
	$(BIN)/python -m pytest -q -m judges tests/judges

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
