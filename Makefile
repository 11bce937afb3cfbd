# Every target sets up what it needs. `make demo` and `make test` are all that a newcomer has to know.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Where `make serve` listens; `make serve HOST=0.0.0.0 PORT=8124` changes it. (Some shells export a HOST: not that.)
HOST = 127.0.0.1
PORT = 8000

# Files are spread over processes in the order of tests/conftest.py; two, as tests of clusters keep both cores busy.
# A process that crashes ends the run with the name of its test: pytest-xdist can wait for ever for its replacement.
PARALLEL = --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Without caches, each process of pytest rewrites and compiles all tests again.
unexport PYTHONDONTWRITEBYTECODE

# The Pythons of `make test-pythons`.
PYTHONS = $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[1-9].*/bin/python)

.PHONY: help setup demo serve test test-unit test-avx2 test-pythons faults lint format figures docs wheel cluster cluster-stop lock clean

help:  ## Show the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(READY)  ## Make .venv with the locked dependencies

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## Train three label trees on the docstrings of the installed packages (8 to 17 minutes on 2 cores, with installation)
	$(BIN)/axml-ray demo

serve: setup  ## Put the demo's model behind http://127.0.0.1:8000, or HOST=… PORT=… (trains it first if there is none)
	@test -e runs/quickstart/metrics.json || $(MAKE) demo
	@test -e bundles/quickstart || $(BIN)/axml-ray export --run runs/quickstart --to bundles/quickstart
	$(BIN)/axml-ray serve --bundle bundles/quickstart --examples serve_app/examples/quickstart.jsonl --host $(HOST) --port $(PORT)

# Unit tests run in processes of their own: one crashed in a process in which threads of Ray Serve were still running.
test: test-unit  ## Run all tests
	$(BIN)/python -m pytest $(PARALLEL) --numprocesses 2 -m "not unit"

test-unit: setup  ## Run the tests that need neither Ray nor other processes (some minutes)
	$(BIN)/python -m pytest $(PARALLEL) --numprocesses auto -m unit

test-avx2: setup  ## Run the tests of numbers as on a processor without AVX-512: other kernels, and no bfloat16 in hardware
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
		$(BIN)/python -m pytest $(PARALLEL) --numprocesses 2 tests/network tests/training tests/planning

test-pythons:  ## Run the unit tests on each Python from 3.11 on that pyenv has, in .venv-VERSION
	@for python in $(PYTHONS); do \
		version=$$(basename $$(dirname $$(dirname $$python))); echo "Python $$version"; \
		$$python -m venv .venv-$$version && \
		.venv-$$version/bin/python -m pip install --disable-pip-version-check --quiet --requirement requirements.lock && \
		.venv-$$version/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable . && \
		.venv-$$version/bin/python -m pytest $(PARALLEL) --numprocesses auto -m unit || exit 1; \
	done

faults: setup  ## Inject the faults that the project survives, and make the table of docs/faults.md (about half an hour on 2 cores)
	$(BIN)/python benchmarks/faults.py

lint: setup  ## Formatter, linter, type checker, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

figures: setup  ## Print sizes of the code: lines of each room, settings, longest files and functions, comments
	@$(BIN)/python benchmarks/figures.py

docs: setup  ## Build the documentation into site/ without network access; warnings and dead links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "Open site/index.html; for search: $(BIN)/python -m http.server --directory site --bind 127.0.0.1 8001"

wheel: setup  ## Make the wheel in dist/: everything that `axml-ray` needs, in one file
	rm -rf build dist  # files that no longer exist would be packed again
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build

cluster: setup  ## Start a Ray head on this machine, for `ray job submit`; CLUSTER_FLAGS="--dashboard-port 8266 …"
	@$(BIN)/axml-ray cluster start $(CLUSTER_FLAGS)

cluster-stop: setup  ## Stop that head and wait until it is gone
	@$(BIN)/axml-ray cluster stop

lock: setup  ## Resolve pyproject.toml's ranges anew
	@echo "torch==2.13.0" > .venv/constraint.txt
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --extra dev --extra docs --strip-extras \
		--allow-unsafe --no-annotate --no-emit-options --constraint .venv/constraint.txt --output-file requirements.lock pyproject.toml
	@sed -i -e 's/^\(torch==[0-9.]*\)+cpu/\1/' -e '/^axml-ray @/d' requirements.lock  # the extra dev names this package
	# What runs, of the same versions, for the CUDA image: this torch brings NVIDIA's libraries and Triton itself.
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --extra serve --extra tune --strip-extras \
		--allow-unsafe --no-annotate --no-emit-options --constraint requirements.lock --output-file requirements-cuda.lock pyproject.toml
	@sed -i -e 's/^\(torch==[0-9.]*\)+cpu/\1/' requirements-cuda.lock

clean:  ## Remove the environment; runs and corpora stay
	rm -rf .venv
