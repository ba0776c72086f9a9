# The same checks as CI. PYTHON: the interpreter of an environment with `pip install -e .[dev]`.
PYTHON ?= python

.PHONY: check format lint types test slow

check: format lint types test slow

format:
	$(PYTHON) -m ruff format --check .

lint:
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest -m "not slow"

slow:
	$(PYTHON) -m pytest -m slow
