# The same checks as CI. PYTHON: the interpreter of an environment with `pip install -e .[dev]`.
PYTHON ?= python
# Test processes at a time in `make test` and `make coverage`; 0: the tests run one after the other, without pytest-xdist.
JOBS ?= 2
FAST = $(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --durations=15 -m "not slow and not exhaustive"

# Compiled modules are kept: without them every process that a test starts compiles the packages again, and every pytest
# process compiles the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check format lint types docs pages test coverage slow exhaustive lowest gpu

check: format lint types docs test slow

format:
	$(PYTHON) -m ruff format --check .

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m codespell_lib

types:
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --config-file tests/mypy.ini

# The documentation as web pages in site/, without network. A link to nothing fails.
docs:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

# What in docs/ is made from other files: the list of decisions, the picture of the floors.
pages:
	$(PYTHON) docs/make_decisions.py
	$(PYTHON) docs/pictures/make_floors.py

test:
	$(FAST)

# The fast tests, and which lines of the package they run in their own processes. Fewer than pyproject.toml says fails.
# Slower than the tests alone, and so not a part of `check`.
coverage:
	$(FAST) --cov --cov-report=term:skip-covered

# Those that start Ray run one after the other, but for some that kill nothing; the others beside them (tests/conftest.py).
slow:
	$(PYTHON) -m pytest -n $(JOBS) --dist loadgroup --durations=60 -m "slow and not exhaustive"

# More faults, most of them in a virtual Slurm, and more kills of searches; more than half an hour on two cores of one's
# own.
exhaustive:
	$(PYTHON) -m pytest --durations=15 -m exhaustive

# The tests that call other packages most directly, and a search, with the lowest versions that pyproject.toml allows, in
# an environment that is made and removed: it needs 8 GB and a download. `make check` runs what is installed, in CI the
# newest versions.
lowest:
	PYTHON=$(PYTHON) .ci/lowest $(JOBS)

# What needs a GPU: its tests, then the benchmarks with an arm for it. MINUTES: of all together; ONLY: some steps.
MINUTES ?= 12
gpu:
	$(PYTHON) benchmarks/gpu.py --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY)) $(GPU_OPTIONS)
