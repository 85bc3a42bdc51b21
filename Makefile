# `make` alone explains the targets. PYTHON names the interpreter (3.11 or newer) that
# .venv is made from, ARGS is handed on to the command of a target.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet \
	--universal --python-version 3.11 --generate-hashes --no-emit-index-url $(ARGS)

# Stamps: what was installed from the lock, and the project itself on top of it.
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo serve test coverage test-long clients check format migrate openapi quality bench lock clean

help: ## Show this list
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Start on the embedded database, index a sample, assemble a snapshot over HTTP, show it
	$(BIN)/ctxsnap demo $(ARGS)

serve: $(READY) ## Keep the service running, on the embedded database unless CTXSNAP_DATABASE_URL is set
	$(BIN)/ctxsnap serve $(ARGS)

test: $(READY) ## Run the suite without what is marked long, on two processes
	$(BIN)/pytest -m "not long" --numprocesses 2 --dist worksteal $(ARGS)

coverage: $(READY) ## Run the suite as `test` does and show branch coverage; slower
	$(BIN)/pytest -m "not long" --numprocesses 2 --dist worksteal --cov --cov-report=term $(ARGS)

test-long: $(READY) ## Run the full-size properties and faults
	CTXSNAP_FULL_SIZE=1 $(BIN)/pytest -m "long or full_size" $(ARGS)

# What the generators leave behind, and what they themselves need.
CLIENTS := .clients
GENERATORS := $(CLIENTS)/venv/bin

clients: $(READY) ## Generate clients in Python and TypeScript, compile and try them; needs java and npm
	rm -rf $(CLIENTS)
	$(PYTHON) -m venv $(CLIENTS)/venv
	$(GENERATORS)/python -m pip install --quiet --require-hashes -r requirements/clients.lock
	PATH="$(abspath $(GENERATORS)):$$PATH" $(GENERATORS)/openapi-python-client generate \
		--path openapi/openapi.json --config openapi/clients/openapi-python-client.yaml \
		--meta none --output-path $(CLIENTS)/python/ctxsnap_client --fail-on-warning
	$(GENERATORS)/openapi-generator-cli generate -i openapi/openapi.json -g python \
		-o $(CLIENTS)/python --additional-properties packageName=ctxsnap_generated >$(CLIENTS)/python.log
	$(GENERATORS)/openapi-generator-cli generate -i openapi/openapi.json -g typescript-fetch \
		-o $(CLIENTS)/typescript/generated >$(CLIENTS)/typescript.log
	cp openapi/clients/package.json openapi/clients/tsconfig.json tests/clients/*.ts $(CLIENTS)/typescript
	npm install --prefix $(CLIENTS)/typescript --no-package-lock --no-fund --no-audit --silent
	$(CLIENTS)/typescript/node_modules/.bin/openapi-typescript openapi/openapi.json \
		-o $(CLIENTS)/typescript/schema.d.ts
	$(CLIENTS)/typescript/node_modules/.bin/tsc --project $(CLIENTS)/typescript
	$(BIN)/pytest tests/clients $(ARGS)

check: $(READY) ## Lint, check format, types, layers and the exported OpenAPI document
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/ctxsnap openapi --check

format: $(READY) ## Apply ruff's fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

migrate: $(READY) ## Bring the database at CTXSNAP_MIGRATION_DATABASE_URL up to date
	$(BIN)/ctxsnap migrate $(ARGS)

openapi: $(READY) ## Export openapi/openapi.json
	$(BIN)/ctxsnap openapi $(ARGS)

quality: $(READY) ## Measure retrieval on real collections
	$(BIN)/python -m bench.quality $(ARGS)
	$(BIN)/python -m bench.hybrid

bench: $(READY) ## Measure speed and size
	$(BIN)/python -m bench $(ARGS)

# The image's locks are held to the versions that the suite is run with.
lock: $(READY) ## Compile requirements/*.lock from pyproject.toml; ARGS=--upgrade for newer versions
	$(COMPILE) pyproject.toml --extra embedded --extra local-embeddings --group dev \
		-o requirements/dev.lock
	$(COMPILE) pyproject.toml -c requirements/dev.lock -o requirements/runtime.lock
	$(COMPILE) --group pyproject.toml:build -c requirements/dev.lock -o requirements/build.lock
	$(COMPILE) --group pyproject.toml:clients -o requirements/clients.lock

clean: ## Remove .venv, caches and reports; a database's files stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf .coverage htmlcov dist $(CLIENTS)
	find app bench migrations tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Made anew, not added to: nothing that an older lock brought stays behind.
$(LOCKED): requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.13" >&2; exit 1; }
	@echo "Setting up $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

$(READY): $(LOCKED) pyproject.toml
	@$(PIP) install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@
