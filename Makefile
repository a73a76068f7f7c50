# Everything below sets itself up from a fresh clone: a virtual environment in .venv, packages from PyPI,
# the compiled package, and AITER's code objects unpacked into .aiter (they are read, never installed).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(shell find csrc cmake -type f) CMakeLists.txt pyproject.toml
E2E_OUTPUT ?= e2e-output

FUZZ ?= --seconds 60 --jobs 2

.PHONY: all install e2e lite layer test test-full canary fuzz fuzz-sanitized lint format api clean
all: install

$(VENV)/.environment:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.requirements: e2e/requirements.txt e2e/requirements-no-deps.txt tests/requirements.txt | $(VENV)/.environment
	$(BIN)/pip install --quiet -r e2e/requirements.txt -r tests/requirements.txt
	$(BIN)/pip install --quiet --no-deps -r e2e/requirements-no-deps.txt
	touch $@

$(VENV)/.package: $(SOURCES) $(VENV)/.requirements
	$(BIN)/pip install --quiet -e .
	touch $@

.aiter/.unpacked: tools/fetch_aiter.py | $(VENV)/.environment
	$(BIN)/python tools/fetch_aiter.py
	touch $@

install: $(VENV)/.package .aiter/.unpacked

# A small video per kernel, ours and AITER's, executed on the simulated MI300X, and the table that compares them.
e2e: install
	$(BIN)/python -m e2e.compare --output $(E2E_OUTPUT)

# The same on a model whose attention is local and drifts: sparsity, instructions and quality over thresholds. Not
# split: pieces would fill compute units that stay idle at this size alone, and cost the instructions counted here.
lite: install
	LITEATTENTION_ROCM_HIP_PIECES=1 $(BIN)/python -m e2e.compare --model structured --sweep=-14,-8,-4,-2 --output $(E2E_OUTPUT)-lite

# A whole self-attention layer of Wan2.1-T2V-1.3B at 480p, ours and AITER's, every element compared. Interrupted, it
# goes on where it stopped.
layer: install
	$(BIN)/python -m e2e.layer --rounding rtz --json $(E2E_OUTPUT)/layer.json

test: install
	$(BIN)/pytest

# Adds the cases that take longer.
test-full: install
	$(BIN)/pytest -m "full or not full"

# The plugin's contracts with SGLang on its newest release, in an environment of its own.
CANARY := $(VENV)-canary
canary: install
	$(PYTHON) -m venv --clear $(CANARY)
	$(CANARY)/bin/pip install --quiet -r e2e/requirements.txt -r tests/requirements.txt
	$(CANARY)/bin/pip install --quiet --no-deps -r e2e/requirements-no-deps.txt
	$(CANARY)/bin/pip install --quiet --no-deps --upgrade sglang
	$(CANARY)/bin/pip install --quiet .
	$(CANARY)/bin/pytest tests/test_sglang_contracts.py -m "full or not full"

# Random calls, bad arguments and damaged code objects, from a new seed each time: docs/testing.md.
fuzz: install
	$(BIN)/python tests/fuzz.py $(FUZZ)

# The same against a build with AddressSanitizer and UndefinedBehaviorSanitizer.
fuzz-sanitized: install
	$(BIN)/python tests/fuzz_sanitized.py $(FUZZ)

lint: $(VENV)/.requirements
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.hpp' '*.hip' '*.inl' '*.def' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.requirements
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.hpp' '*.hip' '*.inl' '*.def' | xargs $(BIN)/clang-format -i

# docs/api.md from the docstrings.
api: install
	$(BIN)/python tools/api_docs.py

clean:
	rm -rf $(VENV) $(CANARY) .aiter $(E2E_OUTPUT) $(E2E_OUTPUT)-lite fuzz-output build
