# One file of commands. `make demo` and `make test` need Python >= 3.11 with venv, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
space := $(subst ,, )
# The lab's tests run against the provisioner that this names: ours, unless told otherwise.
export MESH_LAB_PROVISIONER ?= $(CURDIR)/$(BIN)/postgres-provisioner

.PHONY: demo demo-mesh demo-postgres test test-all test-pythons coverage lint types bench docs clean
.DEFAULT_GOAL := test

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

demo: $(VENV)/.installed  ## the main job on an embedded NATS server and 50 simulated servers
	$(BIN)/choria-provisioner demo

demo-postgres: $(VENV)/.installed  ## three PostgreSQL logins come, rotate and go on a server raised for it
	$(BIN)/postgres-provisioner demo

demo-mesh: $(VENV)/.installed  ## the mesh's accounts, registry, three nodes and what they may not do
	$(BIN)/python docs/examples/mesh_demo.py

test: $(VENV)/.installed  ## under five minutes on two cores
	$(BIN)/python -m pytest -m "not slow and not interop and not browser" $(ARGS)

test-all: $(VENV)/.installed  ## what `test` leaves out: slow runs, real Choria, a real browser
	$(BIN)/python -m pytest -m "slow or interop or browser" $(ARGS)

COVERED := choria/* trust/* cycle/* fleet/* leader/* notice/* rpc.py
coverage: $(VENV)/.installed  ## of the rooms that the tests without a network go through
	$(BIN)/python -m pytest -q -m "not slow" tests/pure tests/flow tests/conformance --cov --cov-report=
	$(BIN)/python -m coverage report --skip-covered --fail-under=95 \
		--include="$(subst $(space),$(comma),$(COVERED:%=provisioner/%))"

test-pythons: $(VENV)/.installed  ## the quick tests on each other supported Python of this machine
	tests/pythons

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

bench: $(VENV)/.installed  ## docs/performance.md anew, in twenty to thirty minutes; QUICK=1: a minute; ONLY=: a part; PEER=: a Go program
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(PEER),--peer $(PEER)) $(if $(ONLY),--only $(ONLY))

docs: $(VENV)/.installed  ## fills the tables of the documentation from the code, and builds the site at build/site
	$(BIN)/python docs/generate.py
	$(BIN)/python contrib/generate.py
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky docs build/site

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache build dist
