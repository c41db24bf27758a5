# Two commands for people: `make up` and `make test`. The others are for those who change the code.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
# Two, because the tests are made for machines of two cores.
WORKERS ?= 2
PYTEST := $(PYTHON) -m pytest -n $(WORKERS)

# Compiled modules are what makes the second start fast.
unexport PYTHONDONTWRITEBYTECODE
# Gates read the settings; they get a data folder that is not the developer's.
GATES := OCHAT_DATA_DIR=$(VENV)/.gates OCHAT_DATABASE_URL=

.PHONY: help up test check check-long gates browser sandbox bench

help: ## This list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

up: $(INSTALLED) ## Run Ochat on this machine.
	@exec $(PYTHON) manage.py up $(ARGS)

test: $(INSTALLED_DEV) ## Every test that is quick; says which did not run.
	@$(PYTEST) -m "not long" $(ARGS)

check: gates ## Every gate, then `make test`.
	@$(MAKE) --no-print-directory test

check-long: gates ## Every gate and every test, with their branch coverage.
	@$(PYTEST) --cov --cov-report=term:skip-covered $(ARGS)

gates: $(INSTALLED_DEV)
	@$(VENV)/bin/ruff format --check --quiet . || { echo "ruff format: run '$(VENV)/bin/ruff format .'"; exit 1; }
	@$(VENV)/bin/ruff check --quiet .
	@$(GATES) $(VENV)/bin/mypy --no-error-summary
	@$(VENV)/bin/lint-imports --no-logo >/dev/null || $(VENV)/bin/lint-imports --no-logo
	@$(GATES) $(PYTHON) manage.py check --fail-level WARNING >/dev/null
	@$(GATES) $(PYTHON) manage.py makemigrations --check --dry-run
	@$(GATES) $(PYTHON) manage.py protocol_reference --check
	@echo "Gates: format, lint, types, imports, checks, migrations and the protocol reference are clean."

browser: ## Install Chromium, for the tests that need it.
	@echo "browser: no test needs Chromium yet; nothing to install."

sandbox: ## Install bubblewrap, for the tests that need it.
	@echo "sandbox: no test needs bubblewrap yet; nothing to install."

bench: $(INSTALLED_DEV) ## Measure this machine; see docs/performance.md.
	@$(PYTHON) -m bench $(ARGS)

# The marks are newer than the lists they were installed from, so an installed checkout installs nothing.

$(PYTHON):
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ochat needs Python 3.11 or newer.")'
	python3 -m venv $(VENV)

$(INSTALLED): requirements.txt | $(PYTHON)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt requirements.txt | $(PYTHON)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@ $(INSTALLED)
