"""What the benchmark of `make check` reads from the Makefile and from pytest's output."""

import check_time

from helpers.paths import ROOT

OUTPUT = """
..s.
============================= slowest 15 durations =============================
24.18s call     tests/test_examples.py::test_lars
1.06s setup    tests/test_a.py::test_b[a name, with spaces]
=========================== short test summary info ============================
SKIPPED [1] tests/conftest.py:33: needs a CUDA device
FAILED tests/test_a.py::test_c - AssertionError: 3 passed in 2.00s
====== 1 failed, 901 passed, 5 skipped in 482.54s (0:08:02) ======
"""


def test_outcomes_and_slowest_tests_are_read_from_pytests_output() -> None:
    found = check_time.of_pytest(OUTPUT)
    assert found["tests"] == {"failed": 1, "passed": 901, "skipped": 5}
    assert found["slowest_s"] == {
        "tests/test_examples.py::test_lars (call)": 24.18,
        "tests/test_a.py::test_b[a name, with spaces] (setup)": 1.06,
    }
    assert check_time.of_pytest("120 passed, 3 skipped in 9.1s\n")["tests"] == {"passed": 120, "skipped": 3}
    assert check_time.of_pytest("Success: no issues found in 229 source files\n") == {}


def test_the_stages_are_those_of_make_check() -> None:
    assert check_time.stages_of_check("a: b\ncheck: one two\n\tcheck: three\n") == ["one", "two"]
    stages = check_time.stages_of_check((ROOT / "Makefile").read_text())
    assert {"format", "lint", "types", "docs", "slow"} < set(stages)
