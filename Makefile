# Every target sets up what it needs. `make demo` and `make test` are all that a newcomer has to know.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Loopback only and without a token: these are for a cluster on one's own machine.
RAY_ENV := RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=0.5 \
	RAY_worker_maximum_startup_concurrency=8 RAY_TRAIN_V2_ENABLED=1 MALLOC_ARENA_MAX=1

# Where `make serve` listens; `make serve HOST=0.0.0.0 PORT=8124` changes it. (Some shells export a HOST: not that.)
HOST = 127.0.0.1
PORT = 8000

.PHONY: help setup demo serve test lint format cluster cluster-stop lock clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(READY)  ## Make .venv with the locked dependencies

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## Train three label trees on the documentation of the installed packages (10 minutes)
	$(BIN)/python jobs/train_ensemble.py --config configs/quickstart.yaml

serve: setup  ## Put the demo's model behind http://127.0.0.1:8000, or HOST=… PORT=… (trains it first if there is none)
	@test -e runs/quickstart/metrics.json || $(MAKE) demo
	@test -e bundles/quickstart || $(BIN)/python jobs/export_bundle.py --run runs/quickstart --to bundles/quickstart
	$(BIN)/python -m serve_app bundle=bundles/quickstart examples=serve_app/examples/quickstart.jsonl \
		host=$(HOST) port=$(PORT)

test: setup  ## Run all tests
	$(BIN)/python -m pytest

lint: setup  ## Formatter, linter, type checker, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

cluster: setup  ## Start a Ray head on this machine, for `ray job submit`
	@mkdir -p runs
	@if [ -e runs/cluster.pid ] && kill -0 $$(cat runs/cluster.pid) 2>/dev/null; then echo "A cluster is running; make cluster-stop ends it."; exit 1; fi
	@PATH="$(CURDIR)/$(BIN):$$PATH" AXML_RAY_HOME="$(CURDIR)" PYTHONPATH="$(CURDIR)" $(RAY_ENV) setsid nohup $(BIN)/ray start --head --block \
		--node-ip-address 127.0.0.1 --dashboard-host 127.0.0.1 --object-store-memory 1073741824 \
		> runs/cluster.log 2>&1 < /dev/null & echo $$! > runs/cluster.pid
	@for i in $$(seq 60); do $(RAY_ENV) $(BIN)/ray job list > /dev/null 2>&1 && break; sleep 1; \
		kill -0 $$(cat runs/cluster.pid) 2>/dev/null || { tail -5 runs/cluster.log; exit 1; }; done
	@echo "A Ray head is running (dashboard http://127.0.0.1:8265, log runs/cluster.log). Submit with:"
	@echo "  $(BIN)/ray job submit --working-dir . -- python jobs/train_ensemble.py --config configs/quickstart.yaml"
	@echo "make cluster-stop ends it."

cluster-stop:  ## Stop that head
	@kill $$(cat runs/cluster.pid) && rm runs/cluster.pid

lock: setup  ## Resolve pyproject.toml's ranges anew
	@echo "torch==2.13.0" > .venv/constraint.txt
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --extra dev --strip-extras --allow-unsafe \
		--no-annotate --no-emit-options --constraint .venv/constraint.txt --output-file requirements.lock pyproject.toml
	@sed -i 's/^\(torch==[0-9.]*\)+cpu/\1/' requirements.lock

clean:  ## Remove the environment; runs and corpora stay
	rm -rf .venv
