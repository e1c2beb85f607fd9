# On a machine with Python 3.11, pip and make, every target does its own set-up, once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test quick fuzz torture docs dist dist-check lint audit format bench lock clean

setup: $(READY)

# The lock names every package with its hash; --no-deps because it is complete.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)
	$(BIN)/mini demo

# Two processes with one thread each: torch's own threads would fight over two cores.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

quick: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow"

# Damaged files, other ones each time: make fuzz MINUTES=60, or N=20000 cases.
fuzz: MINUTES ?= $(if $(N),0,60)
fuzz: $(READY)
	FUZZ_N=$(or $(N),0) FUZZ_MINUTES=$(MINUTES) OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -n 2 --dist worksteal -q -rP tests/fuzz

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known vulnerabilities of the packages in the lock; nothing where PyPI cannot be reached.
audit: $(READY)
	$(BIN)/python .ci/audit.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Kills runs and studies at random moments; make torture N=10 for a quick look.
torture: $(READY)
	OMP_NUM_THREADS=1 N=$(or $(N),100) $(BIN)/python tests/torture.py

# The documentation as pages in site/; a test builds it too.
docs: $(READY)
	$(BIN)/zensical build --clean --strict

# The wheel and the source archive, in dist/.
dist: $(READY)
	rm -rf dist
	$(BIN)/hatchling build

# The wheel in fresh environments, with the oldest and the newest dependencies; needs uv and the network.
dist-check: dist
	$(BIN)/python tests/dist_check.py

# make bench, or make bench DEVKIT=path/to/VOCdevkit for the detector's too (a GPU is wanted there).
bench: $(READY)
	$(BIN)/python benchmarks/load_speed.py
	$(BIN)/python benchmarks/eval_speed.py
	$(BIN)/python benchmarks/crops_speed.py
	$(BIN)/python benchmarks/official_shots.py $(DEVKIT)
ifdef DEVKIT
	$(BIN)/python benchmarks/detector_speed.py $(DEVKIT)
endif

# Needs uv (pip install uv). Universal: one lock for Linux and macOS, Python 3.11 to 3.13.
lock:
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate --output-file requirements.lock

clean:
	rm -rf .venv runs site dist
