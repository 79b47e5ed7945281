# Two commands set everything up on a fresh machine: `make demo` and `make test`. Each installs what it needs into .venv.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo test services soak bench format clean

VENV := .venv
BIN := $(VENV)/bin
# The newest of these that runs, is 3.11 or later and can make a virtual environment; or set PYTHON.
PYTHON_CANDIDATES := python3.14 python3.13 python3.12 python3.11 python3
PYTHON ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
# pytest's options of the day, as in `make test PYTEST_ARGS='-k location'`.
PYTEST_ARGS ?=
# Three for two cores: many tests wait for processes, brokers and disks.
WORKERS ?= 3
DEMO := .demo
TYPED := gasoline_es projections $(wildcard tests/typing)

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_ROOT_USER_ACTION := ignore

help:
	@echo 'make demo    run the help desk example on its sample, in .venv'
	@echo 'make test    install, run every check and every test'
	@echo 'make soak    the tests that run for minutes'
	@echo 'make bench   the benchmarks (docs/performance.md)'
	@echo 'make format  format the code, apply the safe fixes'
	@echo 'make clean   remove .venv, .demo and every cache'

$(BIN)/python:
	@chosen='$(PYTHON)'; \
	if [ -z "$$chosen" ]; then \
	  for candidate in $(PYTHON_CANDIDATES); do \
	    if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	      chosen="$$candidate"; break; \
	    fi; \
	  done; \
	fi; \
	if [ -z "$$chosen" ]; then \
	  echo 'No Python 3.11 or later that can make a virtual environment was found (tried: $(PYTHON_CANDIDATES)).' >&2; \
	  echo 'On Debian and Ubuntu: apt-get install python3 python3-venv. Or name one: make PYTHON=/path/to/python3.' >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$chosen"; \
	if ! "$$chosen" -m venv $(VENV); then \
	  rm -rf $(VENV); \
	  echo "$$chosen cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv." >&2; \
	  exit 1; \
	fi

# Stamps: what is installed follows pyproject.toml.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo 'Installing the library into $(VENV)'
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo 'Installing the library and the development tools into $(VENV)'
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@mkdir -p $(DEMO)
	@$(BIN)/python examples/helpdesk.py examples/helpdesk-sample.jsonl --log file:$(DEMO)/log
	@echo
	@echo 'Every ticket of the sample was a durable workflow, every line a signal, every step an event on the log in $(DEMO)/log:'
	@echo '  $(BIN)/gasoline --log file:$(DEMO)/log workflow list'
	@echo 'Kill `make demo` at any moment and run it again: it goes on where it was. After its end it answers from the log.'

# What tests need beside Python. The packages of Debian would otherwise start a server of their own.
services: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.postgres_server || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo 'Installing PostgreSQL, which the tests of projections need'; \
	    mkdir -p /etc/postgresql-common; \
	    [ -e /etc/postgresql-common/createcluster.conf ] || \
	      echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf; \
	    apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql >/dev/null; \
	  }; \
	} || echo 'There is no PostgreSQL here: the tests that need one are skipped, or fail in CI.'
	@$(BIN)/python -m tests.kafka_server || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo 'Installing Java and Maven, which bring the broker that the tests of the Kafka log need'; \
	    apt-get update -qq; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends default-jre-headless maven >/dev/null; \
	  } && $(BIN)/python -m tests.kafka_server; \
	} || echo 'There is no Kafka broker here: the tests that need one are skipped, or fail in CI.'
	@command -v kcat >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	    echo 'Installing kcat, which reads what the Kafka log writes'; \
	    apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends kcat >/dev/null; \
	  }; \
	} || echo 'There is no kcat here: the test that reads by it is skipped, or fails in CI.'

# Every check runs, whatever the others say. pytest comes last, so that its closing line closes the output.
test: $(VENV)/.installed-dev services
	@failed=''; \
	check() { \
	  local name="$$1"; shift; \
	  printf '\n== %s\n' "$$name"; \
	  "$$@" || failed="$$failed, $$name"; \
	}; \
	check 'ruff check' $(BIN)/ruff check --quiet --output-format concise .; \
	check 'ruff format' $(BIN)/ruff format --quiet --check .; \
	check 'import-linter' $(BIN)/lint-imports --no-cache --no-logo; \
	check 'pyright (strict)' $(BIN)/pyright; \
	check 'mypy (strict)' $(BIN)/mypy $(TYPED); \
	if [ -n "$$failed" ]; then printf '\n== FAILED so far: %s\n' "$${failed#, }"; fi; \
	printf '\n== pytest\n'; \
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS) || failed="$$failed, pytest"; \
	[ -z "$$failed" ]

soak: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -m soak --timeout 3600 $(PYTEST_ARGS) || { \
	  code=$$?; \
	  if [ $$code -eq 5 ]; then echo 'There is no soak test yet.'; else exit $$code; fi; \
	}

bench: $(VENV)/.installed
	@for script in bench/[!_]*.py; do \
	  [ -e "$$script" ] || { echo 'There is no benchmark yet.'; break; }; \
	  printf '\n== %s\n' "$$script"; \
	  $(BIN)/python "$$script" || exit 1; \
	done

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
