# On a fresh machine, start with `make demo` or `make test`. All targets except help and clean first create the environment
# in .venv, or repair it if it is broken or incomplete.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# STAMP exists after a completed installation. HALF exists during one; if it is left over, the environment is rebuilt.
STAMP  := $(VENV)/.installed
HALF   := $(VENV)/.installing

.PHONY: help demo test test-system quick lint fuzz reliability bench bench-growth bench-scale bench-rivals reproduce reproduce-quick estimate docs licences audit clean
.DEFAULT_GOAL := help

help:
	@echo "make demo              train four methods three times each on handwritten digits, and write a report (about a minute)"
	@echo "make quick             run the tests that take up to about a second"
	@echo "make test              check lint and types, and run all tests that need only one process"
	@echo "make test-system       run the tests that start other programs: servers, Ray, browsers, wheels, killed processes"
	@echo "make lint              check formatting, lint and types"
	@echo "make docs              build the documentation in site/"
	@echo "make licences          rewrite docs/licences.md from the installed packages"
	@echo "make audit             check the installed packages for known vulnerabilities"
	@echo "make fuzz              feed 100,000 broken files to the readers (ten minutes)"
	@echo "make reliability       test kills, failing disks, long runs, many sites, large models (an hour or more)"
	@echo "make bench             compare the speed with that of a bare PyTorch loop (ten minutes)"
	@echo "make bench-growth      check that cost grows linearly with sites, rounds, parameters and rows (half an hour)"
	@echo "make bench-scale       run the largest federations that fit here, and predict larger ones (half an hour)"
	@echo "make bench-rivals      compare the speed with that of Flower, pfl, FedLab, NVFlare, PFLlib and FL-bench (20 minutes)"
	@echo "make reproduce-quick   run a small study on digits and write its report (a few minutes)"
	@echo "make estimate          say how long make reproduce would take, without training"
	@echo "make reproduce         run every study in docs/reproduce.md, resumable (half a day; prints an estimate first)"
	@echo "make clean             remove .venv and everything that was built"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is required; %s is %s" % (sys.executable, sys.version.split()[0])) if sys.version_info < (3, 11) else None'
	@test ! -e $(HALF) && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@touch $(HALF)
	@echo "Installing into $(VENV) (a few minutes the first time)"
	@# torch on its own first: later packages then find it and do not pull in another build.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm $(HALF) && touch $(STAMP)

# Sites whose labels differ strongly. Three runs show how much the numbers depend on the seed.
DEMO := --alpha 0.1 --algorithm local --algorithm fedavg --algorithm fedper --algorithm player_fl
define demo_run
@echo "Training four methods with seed $(1)"
@$(BIN)/playerfl run digits $(DEMO) --seed $(1) --out runs/demo/seed-$(1) >/dev/null

endef

demo: $(STAMP)
	@rm -rf runs/demo
	$(foreach seed,0 1 2,$(call demo_run,$(seed)))
	@echo
	@$(BIN)/playerfl report runs/demo >/dev/null
	@echo
	@echo "The report: $(CURDIR)/runs/demo/report/report.html"

# Bytecode is kept, but out of the tree: compiling and rewriting the tests again takes each worker ten seconds.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
PYTEST := $(BIN)/python -m pytest --dist worksteal

# With a cold cache, mypy keeps one core busy for a minute, so it runs in parallel with the tests. Its output comes last.
test: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & types=$$!; trap "kill $$types" INT; \
	$(PYTEST) -n auto -m "not system"; tests=$$?; \
	wait $$types; types=$$?; echo "mypy: $$(cat $(VENV)/mypy.log)"; exit $$((tests | types))

# One more worker than there are cores, because these tests often wait for other processes.
test-system: $(STAMP)
	$(PYTEST) -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) -m system

quick: $(STAMP)
	$(PYTEST) -n auto -m "not slow and not system" --hypothesis-profile quick

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The theme prints an advertisement for its successor; the variable silences it.
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

bench-growth: $(STAMP)
	$(BIN)/python benchmarks/growth.py

bench-scale: $(STAMP)
	$(BIN)/python benchmarks/scale.py

bench-rivals: $(STAMP)
	$(BIN)/python benchmarks/rivals.py

# See docs/reliability.md; each script can be run alone. Minutes on two busy cores: kills 4, failing writes 7 to 40,
# 5,000 rounds 3 to 5 per trainer, many sites 5 to 10, a large model 3 to 5.
reliability: $(STAMP)
	$(BIN)/python reliability/kills.py
	$(BIN)/python reliability/deployment_kills.py --kills 15
	$(BIN)/python reliability/disk.py
	$(BIN)/python reliability/long_run.py
	$(BIN)/python reliability/many_sites.py
	$(BIN)/python reliability/large_model.py
	$(BIN)/python reliability/many_institutions.py

# Datasets are read from $PLAYERFL_DATA; missing ones are reported before anything runs. After an interruption, run it again.
SMALL := --set data.size=small --set data.rows_per_site=500 --set training.batch_size=16
STUDIES := heart digits fashion_mnist emnist tweets cifar10 isic2019
SCALE := fashion_mnist tweets isic2019 cifar10 emnist

estimate: $(STAMP)
	@for study in $(STUDIES) $(SCALE:%=scale/%) when_it_helps; do \
		echo "== $$study"; estimate=$$($(BIN)/playerfl study experiments/$$study.toml --dry-run) || exit 1; echo "$$estimate" | tail -4; \
	done

reproduce: estimate
	@for study in $(STUDIES); do $(BIN)/playerfl study experiments/$$study.toml --archive results/2026.1/$$study || exit 1; done
	@for name in heart digits; do \
		$(BIN)/playerfl study experiments/$${name}_per_run.toml --archive results/2026.2/$$name || exit 1; done
	@for name in $(SCALE); do $(BIN)/playerfl study experiments/scale/$$name.toml --archive results/2026.2/$$name || exit 1; done
	$(BIN)/playerfl study experiments/heart_newer.toml --archive results/newer_methods/heart
	$(BIN)/playerfl study experiments/when_it_helps.toml --archive results/when_it_helps
	$(BIN)/playerfl study experiments/heart_authors.toml --archive results/authors-2024/heart
	@for name in heart digits; do $(BIN)/playerfl multiverse experiments/$${name}_multiverse.toml || exit 1; \
		mkdir -p results/multiverse/$$name && cp runs/$$name-multiverse/multiverse.* runs/$$name-multiverse/*.csv results/multiverse/$$name/; done
	$(BIN)/playerfl paper thresholds experiments/thresholds.toml --out results/thresholds
	$(BIN)/playerfl paper thresholds experiments/thresholds_per_run.toml --out results/thresholds_per_run
	$(BIN)/playerfl analyze heart --seeds 3 --out results/analysis/heart
	$(BIN)/playerfl analyze heart --drift 5 --rounds 50 --out results/analysis/heart-drift
	$(BIN)/playerfl analyze fashion_mnist --rounds 10 $(SMALL) --out results/analysis/fashion_mnist
	$(BIN)/playerfl analyze fashion_mnist --drift 2 --rounds 10 $(SMALL) --out results/analysis/fashion_mnist-drift
	$(BIN)/playerfl report results/2026.1 --paper --out results/report.md
	$(BIN)/python tools/reproduce_page.py --store

reproduce-quick: $(STAMP)
	$(BIN)/playerfl study experiments/quick.toml
	@$(BIN)/playerfl report runs/quick >/dev/null
	@echo "Report: $(CURDIR)/runs/quick/report/report.html"

clean:
	rm -rf $(VENV) .venv-rivals build dist site src/*.egg-info
