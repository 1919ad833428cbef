# lethe: build, set up, test. `make` lists the targets. Rust 1.92, Python 3.11, a C compiler and make are what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := help

PYTHON ?= python3
CACHE ?= $(HOME)/.cache/lethe
export CARGO_TARGET_DIR ?= $(CACHE)/target
DATA ?=
OPTIONS ?=
SIZES ?= 20000 200000

# The versions of DuckDB that everything is tested on, and one more that is only tried. As in extension_config/extension.json.
TESTED := 1.5.6 2.0.1
TRIED := 1.5.5
NEWEST := $(lastword $(TESTED))
CARGO_DENY := 0.20.2

EXTENSION := $(CURDIR)/build/lethe.duckdb_extension
LIBRARY := $(CARGO_TARGET_DIR)/release/liblethe.so
DENY_ROOT := $(CACHE)/tools/cargo-deny-$(CARGO_DENY)
DENY := $(DENY_ROOT)/bin/cargo-deny
# What the set-up writes last. Lies where lethe looks for models, whatever the cache.
MODELS := $(or $(XDG_DATA_HOME),$(HOME)/.local/share)/lethe/manifest.json
REQUIREMENTS := extension_config/requirements-setup.txt bench/requirements.txt test/python/requirements.txt
SETUP := $(addprefix extension_config/,setup_models.py bert_graph.py models.json requirements-setup.txt lethe_adapter.safetensors)

# A Python with that version of DuckDB.
venv = $(CACHE)/venv/duckdb-$(1)
python = $(call venv,$(1))/bin/python
ready = $(call venv,$(1))/.ready

##@ Use
.PHONY: help setup build demo
help: ## list the targets
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(call ready,$(NEWEST)) ## put the encoder and ONNX Runtime where lethe looks for them
	$(call python,$(NEWEST)) extension_config/setup_models.py

build: $(EXTENSION) ## compile and package build/lethe.duckdb_extension

demo: $(EXTENSION) $(MODELS) ## ask questions of conversations (DATA=path; default: the sample)
	$(call python,$(NEWEST)) bench/demo.py --extension $(EXTENSION) $(if $(DATA),--data "$(DATA)")

##@ Test
.PHONY: test test-rank test-rust test-sql test-python test-tried lint
test: test-rank test-rust test-sql test-python test-tried lint ## everything below, on every supported DuckDB

test-rank: | tools ## the pure ground floor, which builds without DuckDB, and the rules of the architecture
	cargo test --no-default-features

test-rust: $(MODELS) | tools ## the unit tests of the whole crate
	cargo test --release --lib

test-sql: $(TESTED:%=test-sql-%) ## test/sql, on each DuckDB
test-sql-%: $(EXTENSION) $(MODELS) $(call ready,%)
	XDG_CACHE_HOME=$$(mktemp -d) LETHE_EXTENSION=$(EXTENSION) LETHE_PYTHON=$(call python,$*) cargo run --quiet -p sqllogic

test-python: $(TESTED:%=test-python-%) ## test/python, on each DuckDB
test-python-%: $(EXTENSION) $(MODELS) $(call ready,%)
	LETHE_EXTENSION=$(EXTENSION) $(call python,$*) -m pytest -q -p no:cacheprovider test/python

test-tried: $(EXTENSION) $(MODELS) $(call ready,$(TRIED)) ## one store made, filled and asked, on an older DuckDB
	LETHE_EXTENSION=$(EXTENSION) $(call python,$(TRIED)) test/python/smoke.py

lint: $(DENY) | tools ## format, clippy, licences, and whether the documentation is up to date
	cargo fmt --all --check
	cargo clippy --quiet --release --all-targets -- -D warnings
	cargo clippy --quiet --no-default-features --all-targets -- -D warnings
	cargo clippy --quiet -p sqllogic -- -D warnings
	$(DENY) check licenses
	$(PYTHON) extension_config/document.py --check
	$(PYTHON) bench/corpus/sample/check.py >/dev/null
	cd bench/corpus && $(PYTHON) check_training.py training/*/

##@ Measure and maintain
.PHONY: bench-locomo bench-quality bench-longmemeval bench-scale bench-learning adapter needs-data docs clean
bench-locomo: needs-data $(EXTENSION) $(MODELS) ## retrieval quality on LoCoMo (DATA=path of locomo10.json)
	$(call python,$(NEWEST)) bench/locomo.py --extension $(EXTENSION) --data "$(DATA)"

bench-quality: needs-data $(EXTENSION) $(MODELS) ## the same with intervals, on LoCoMo, LongMemEval, BEIR or JSON lines (DATA=path, OPTIONS="--step 4")
	$(call python,$(NEWEST)) bench/quality.py --extension $(EXTENSION) --data "$(DATA)" $(OPTIONS)

bench-longmemeval: needs-data $(EXTENSION) $(MODELS) ## retrieval quality on LongMemEval (DATA=path of its S or M file, OPTIONS="--protocol one_store")
	$(call python,$(NEWEST)) bench/quality.py --extension $(EXTENSION) --data "$(DATA)" --format longmemeval $(OPTIONS)

bench-scale: needs-data $(EXTENSION) $(MODELS) $(CACHE)/venv/scale/.ready ## time and bytes on many turns, beside fts and vss (DATA=…, SIZES="20000 200000")
	$(CACHE)/venv/scale/bin/python bench/scale.py --extension $(EXTENSION) --data "$(DATA)" --sizes $(SIZES) --out build/scale

bench-learning: needs-data $(EXTENSION) $(MODELS) ## what learning brings on questions it has not seen (DATA=…, PROTOCOLS=asking,feedback,…)
	$(call python,$(NEWEST)) bench/learning.py --extension $(EXTENSION) --data "$(DATA)" $(if $(PROTOCOLS),--protocols $(PROTOCOLS))

adapter: $(EXTENSION) $(MODELS) ## train the default encoder's query adapter on the training corpus, anew
	$(call python,$(NEWEST)) bench/adapter.py --extension $(EXTENSION) --out extension_config/lethe_adapter.safetensors

needs-data:
	@test -e "$(DATA)" || { echo 'make: name the data with DATA=path, of locomo10.json for example' >&2; exit 1; }

docs: ## write the function reference from extension_config/functions.json
	$(PYTHON) extension_config/document.py

clean: ## remove all that make made, but for the models
	rm -rf build $(CACHE)/venv $(CACHE)/tools
	cargo clean

# --- What the targets stand on --------------------------------------------------------------------------------------------

# cargo knows better than make whether the library is up to date, and leaves its time alone if it is.
.PHONY: always
$(LIBRARY): always | tools
	cargo build --release

$(EXTENSION): $(LIBRARY) extension_config/package.py extension_config/extension.json
	$(PYTHON) extension_config/package.py $(LIBRARY) $(EXTENSION)

$(CACHE)/venv/duckdb-%/.ready: $(REQUIREMENTS) | tools
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check duckdb==$* $(REQUIREMENTS:%=-r %)
	touch $@

$(CACHE)/venv/scale/.ready: bench/requirements-scale.txt extension_config/requirements-setup.txt bench/requirements.txt | tools
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $< -r extension_config/requirements-setup.txt -r bench/requirements.txt
	touch $@

$(call ready,$(TRIED)): | tools
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check duckdb==$(TRIED) duckdb-extension-ducklake==$(TRIED)
	touch $@

$(MODELS): $(SETUP) | $(call ready,$(NEWEST))
	$(call python,$(NEWEST)) extension_config/setup_models.py
	touch $@

# Unoptimised, it compiles in 3 CPU minutes instead of its own release profile's many more, and checks the licences in 3 s.
$(DENY): | tools
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	CARGO_TARGET_DIR=$(CACHE)/tools/target cargo install --quiet --locked cargo-deny --version $(CARGO_DENY) --root $(DENY_ROOT)
	rm -rf $(CACHE)/tools/target

.PHONY: tools
tools:
	@missing() { echo "make: $$1 is missing; $$2" >&2; exit 1; }
	command -v cargo >/dev/null || missing cargo 'install Rust 1.92 or later with rustup (apt-get install rustup)'
	command -v cc >/dev/null || missing 'a C compiler' 'apt-get install gcc'
	command -v $(PYTHON) >/dev/null || missing $(PYTHON) 'apt-get install python3'
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || missing 'Python 3.11 or later' 'name one with PYTHON=…'
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || missing "Python's module venv" 'apt-get install python3-venv'
