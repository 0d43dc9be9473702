# fauxrdma's everyday targets. `make` alone lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.fauxrdma-installed
EXTRAS ?= torch,dev
DEMO_FABRICS ?= seed-rail8 fat-tree
PYTEST_ARGS  ?=
JOBS         ?= auto
WARM   := torch torch.nn.parallel torch.utils.data sklearn.datasets pytest hypothesis pydantic ruamel.yaml jinja2 rich.live

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format pytest bench nightly mutation clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install fauxrdma into it (again only when pyproject.toml or constraints.txt change)

# pip would byte-compile all of torch, which takes as long as the rest; importing once compiles what is needed.
# A .venv that another Python built, or that was moved, cannot be repaired by pip: `make clean` removes it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "fauxrdma needs Python 3.11 or newer: run make PYTHON=/path/to/python3.11" >&2; exit 3; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing fauxrdma[$(EXTRAS)] into $(VENV) (the first time takes a minute or two, most of it torch)"
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import sys; [__import__(name) for name in sys.argv[1:]]' $(WARM) \
		2>/dev/null || true
	@touch $@

demo: $(STAMP) ## train a real DDP script over two emulated fabrics and compare them
	@$(BIN)/fauxrdma compare $(DEMO_FABRICS) --nodes 2 --gpus 2 -- examples/train_digits.py

test: lint pytest ## everything that must pass: lint, types, layers, tests

lint: $(STAMP) ## ruff, formatting, mypy --strict, import layers
	@$(BIN)/ruff check --quiet .
	@out=$$($(BIN)/ruff format --check . 2>&1) || { echo "$$out"; exit 1; }
	@$(BIN)/mypy --strict --no-error-summary
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }
	@echo "lint: ruff, format, mypy --strict and import layers are clean"

format: $(STAMP) ## let ruff fix and format what it can
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

# A file a worker: its tests share a lab. Those that time something run afterwards, with nothing beside them.
pytest: $(STAMP) ## the tests only; PYTEST_ARGS='-k name' narrows them, JOBS=1 runs one after the other
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not alone" $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m alone $(PYTEST_ARGS) || test $$? = 5 # 5: PYTEST_ARGS left none of them

bench: $(STAMP) ## run benchmarks/*.py, each printing ratios measured in one run
	@set -e; for script in benchmarks/[!_]*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

nightly: $(STAMP) ## the models of the engine, 10,000 examples each (many minutes)
	@FAUXRDMA_HYPOTHESIS=nightly $(BIN)/python -m pytest --timeout 0 -m hypothesis tests/hca --hypothesis-show-statistics

mutation: $(STAMP) ## plant bugs in the engine, one at a time, and see whether the tests notice (minutes)
	@$(BIN)/python tests/mutation/run_mutants.py

clean: ## remove .venv, caches and reports
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist fauxrdma-out
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
