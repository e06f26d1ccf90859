# Every target works on a fresh clone: it makes .venv first, and repeated calls skip what is already there.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
DOCS_READY := $(VENV)/.docs-ready
# The main job of the library, as `make demo` shows it.
DEMO := boxloop report wine -o report.html --progress

.PHONY: setup demo test test-wheel test-lowest test-slow papers lint format bench performance docs clean
.DEFAULT_GOAL := setup

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "boxloop needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[test,lint]'
	touch $@

$(BENCH_READY): $(READY)
	$(PIP) -e '.[bench]'
	touch $@

$(DOCS_READY): $(READY)
	$(PIP) -e '.[docs]'
	touch $@

demo: $(READY)
	$(BIN)/$(DEMO)

test: $(READY) test-wheel
	$(BIN)/pytest -m 'not slow' -n $(WORKERS)

# What the README shows, where only the wheel is installed.
test-wheel: $(READY)
	$(BIN)/python tests/wheel/run_readme.py

# The oldest releases that pyproject.toml allows, but for torch, whose release is that of constraints.txt.
test-lowest: $(READY)
	$(BIN)/python tests/wheel/run_oldest.py

test-slow: $(READY)
	$(BIN)/pytest -m slow

# The experiments of the papers behind the library; run one with .venv/bin/python -m papers NAME [--quick] [--data FOLDER].
papers: $(READY)
	$(BIN)/python -m papers

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_READY)
	set -e; for script in benchmarks/bench_*.py; do for cores in "taskset -c 0" ""; do \
	echo "== $$cores $$script"; $$cores $(BIN)/python "$$script"; done; done

# The figures of docs/performance.md, measured anew: quiet machine, some hours.
performance: bench
	$(BIN)/python benchmarks/performance_page.py

# The pages, with every warning an error: docs/_build/html/index.html.
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build docs/api/generated report.html report.md report.json report.png report.boxloop
