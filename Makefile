# Everything a newcomer needs: `make demo`, then `make test`. Each target installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
# `make test TORCH=2.11.0`: the same with another torch than constraints.txt pins, in an environment of its own.
ifdef TORCH
VENV := .venv-torch-$(TORCH)
CONSTRAINTS := $(VENV)/constraints.txt
# The CUDA wheel of torch requires one version of triton exactly, 2.11 this one; for any other torch pip chooses.
TRITON := $(if $(filter 2.11.%,$(TORCH)),==3.6.0)
endif
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e

.PHONY: help demo test test-all coverage fuzz kill clients environments bench golden check docs format hooks release clean
help:
	@echo "make demo      train a small model on two cores, look at its attention (about 3 minutes)"
	@echo "make test      the fast tests (about 8 minutes on two cores)"
	@echo "make test-all  all tests; SHARD=1/3, 2/3, 3/3 are parts of them that can run side by side"
	@echo "make coverage  the fast tests, and which lines of saccade/ they run; fails under 92%"
	@echo "make fuzz      commands, requests and C kernels on mutated inputs (5 minutes; FUZZ='--seed 1 --seconds 60')"
	@echo "make kill      trainings killed and resumed, runs damaged (about 15 minutes; KILL='--seed 1 --kills 40')"
	@echo "make clients   200 clients of a server for a minute, hostile ones among them; its memory over 20,000 requests"
	@echo "make environments  the tests without a compiler, AVX-512, triton or HOME, with LANG=C, in a folder with spaces"
	@echo "make bench     how fast it is on this CPU beside others (about 3 minutes)"
	@echo "make golden    whether every recipe still computes what it did in 0.8, bit for bit (about 10 minutes)"
	@echo "make check     style, types, architecture, docs"
	@echo "make docs      write the generated pages, build site/"
	@echo "make hooks     run the checks of .pre-commit-config.yaml before each commit"
	@echo "make release VERSION=x.y.z  check, build, try and tag a release; uploads nothing"

demo: $(VENV)/run.stamp
	$(BIN)/saccade demo
	@echo 'From now on the command is $(BIN)/saccade; after `. $(BIN)/activate`, just saccade.'

# Two workers with one thread each: on two cores, more threads only wait for each other. Bytecode is kept even where the
# environment says otherwise: programs that tests start would compile the package again each time.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2
SHARD ?= 1/1
test: $(VENV)/dev.stamp
	$(PYTEST) --dist loadfile -m "not slow" --shard $(SHARD)

# The fast tests of a file share fixtures in one worker; slow ones, of which a file may have hours, go to any.
test-all: $(VENV)/dev.stamp
	$(PYTEST) --dist loadfile -m "not slow" --shard $(SHARD) --check-all-calls
	$(PYTEST) --dist load --maxschedchunk 1 -m slow --shard $(SHARD)

# Set up by [tool.coverage] in pyproject.toml.
coverage: $(VENV)/dev.stamp
	$(PYTEST) --dist loadfile -m "not slow" --cov --cov-report=term-missing

# Both print their seed, with which the same cases can be run again, and a table for docs/reliability.md.
fuzz: $(VENV)/dev.stamp
	$(BIN)/python tests/fuzz $(FUZZ)
	$(BIN)/python tests/fuzz/web.py
	$(BIN)/python tests/fuzz/kernels.py

kill: $(VENV)/dev.stamp
	$(BIN)/python tests/kill $(KILL)
	$(BIN)/python tests/fuzz --damage

clients: $(VENV)/dev.stamp
	$(BIN)/python tests/fuzz/clients.py

environments: $(VENV)/dev.stamp
	$(BIN)/python scripts/environments.py

bench: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench.py

golden: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/golden.py

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python benchmarks/report.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(VENV)/dev.stamp
	$(BIN)/python docs/generate.py
	$(BIN)/python benchmarks/report.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(VENV)/dev.stamp
	$(BIN)/pre-commit install

release: $(VENV)/dev.stamp
	$(BIN)/python scripts/release.py "$(VERSION)"

clean:
	rm -rf $(VENV) site build dist .coverage

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

ifdef TORCH
$(CONSTRAINTS): constraints.txt
	mkdir -p $(@D)
	sed -e 's/^torch==.*/torch==$(TORCH)/' -e 's/^triton==.*/triton$(TRITON)/' $< > $@
endif

$(VENV)/run.stamp: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) '.[serve]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $@ $(VENV)/run.stamp
