# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Both create the project's own environment in .venv; a broken or half-made one is repaired.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# One says that an installation has finished, the other that one was interrupted and must start afresh.
STAMP  := $(VENV)/.installed
HALF   := $(VENV)/.installing

.PHONY: help demo test test-system quick lint fuzz reliability bench bench-rivals reproduce reproduce-quick estimate docs licences audit clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train Local, FedAvg and PLayer-FL on handwritten digits, compare them, make a page (a minute)"
	@echo "make test    lint, types and the tests that run in one process"
	@echo "make test-system   the tests that start other programs: servers, Ray, browsers, wheels, kills"
	@echo "make quick   the tests that take seconds"
	@echo "make lint    formatting, lint and types"
	@echo "make docs    the documentation with its reference, as pages in site/"
	@echo "make audit   known vulnerabilities in what is installed; make licences   docs/licences.md anew"
	@echo "make fuzz    every reader over 100,000 broken files (ten minutes)"
	@echo "make bench   cost against a bare PyTorch loop"
	@echo "make reliability   200 kills, 2,600 failing writes, 5,000 rounds, 500 sites, 100 million parameters (half an hour or more)"
	@echo "make reproduce-quick   a small study on digits and its report (some minutes)"
	@echo "make reproduce     every study of docs/reproduce.md, resumable (hours; it says how many first)"
	@echo "make bench-rivals   the same work in Flower, pfl and FedLab, side by side (half an hour)"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, %s is %s" % (sys.executable, sys.version.split()[0])) if sys.version_info < (3, 11) else None'
	@test ! -e $(HALF) && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@touch $(HALF)
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@# torch on its own first: later packages then find it and pull no other build.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm $(HALF) && touch $(STAMP)

demo: $(STAMP)
	$(BIN)/playerfl run digits --algorithm local --algorithm fedavg --algorithm player_fl --out runs/demo --overwrite
	@$(BIN)/playerfl report runs/demo >/dev/null
	@echo "The report, one page to open in a browser: $(CURDIR)/runs/demo/report/report.html"

# One more than cores: the longest tests wait for other processes most of the time.
WORKERS = $(shell $(BIN)/python -c 'import os; print(os.cpu_count() + 1)')

test: $(STAMP) lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not system"

test-system: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m system

quick: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not system"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The theme announces its successor at every start.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open $(CURDIR)/site/index.html"

licences: $(STAMP)
	$(BIN)/python tools/licences.py

audit: $(STAMP)
	@$(BIN)/python tools/audit.py

fuzz: $(STAMP)
	$(BIN)/python reliability/fuzz.py --inputs 100000 --save findings

bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py

bench-rivals: $(STAMP)
	$(BIN)/python benchmarks/rivals.py

# What docs/reliability.md tells; each of them may be run alone. On two busy cores: kills of runs
# 3 minutes, of sites 1; failing writes 7 to 40; 5,000 rounds 3 to 5 a trainer; many sites 5 to 10; a large model 3 to 5 in one process.
reliability: $(STAMP)
	$(BIN)/python reliability/kills.py
	$(BIN)/python reliability/disk.py
	$(BIN)/python reliability/long_run.py
	$(BIN)/python reliability/many_sites.py
	$(BIN)/python reliability/large_model.py

# Datasets are looked for in $PLAYERFL_DATA; what is missing is said before anything runs. Interrupted, it goes on where it stopped.
SMALL := --set data.size=small --set data.rows_per_site=500 --set training.batch_size=16
STUDIES := heart digits fashion_mnist emnist tweets cifar10 isic2019

estimate: $(STAMP)
	@for study in $(STUDIES); do \
		echo "== $$study"; told=$$($(BIN)/playerfl study experiments/$$study.toml --dry-run) || exit 1; echo "$$told" | tail -4; \
	done

reproduce: estimate
	@for study in $(STUDIES); do $(BIN)/playerfl study experiments/$$study.toml --archive results/$$study || exit 1; done
	$(BIN)/playerfl paper thresholds experiments/thresholds.toml --out results/thresholds
	$(BIN)/playerfl analyze heart --seeds 3 --out results/analysis/heart
	$(BIN)/playerfl analyze heart --drift 5 --rounds 50 --out results/analysis/heart-drift
	$(BIN)/playerfl analyze fashion_mnist --rounds 10 $(SMALL) --out results/analysis/fashion_mnist
	$(BIN)/playerfl analyze fashion_mnist --drift 2 --rounds 10 $(SMALL) --out results/analysis/fashion_mnist-drift
	$(BIN)/playerfl report results --paper --out results/report.md

reproduce-quick: $(STAMP)
	$(BIN)/playerfl study experiments/quick.toml
	@$(BIN)/playerfl report runs/quick >/dev/null
	@echo "The report, one page to open in a browser: $(CURDIR)/runs/quick/report/report.html"

clean:
	rm -rf $(VENV) .venv-rivals build dist site src/*.egg-info
