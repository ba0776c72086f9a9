"""``--stage`` on nodes that cannot: said on the driver's screen."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bigbatch.train_loop.data.packing import command as pack_command
from bigbatch.train_loop.reporter import ListReporter, report_notes


@pytest.fixture(scope="module")
def packed(tiny_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "packed"
    assert pack_command.main([str(tiny_images), str(folder), "--workers", "1"]) == 0
    return folder


class Heard(ListReporter):
    def noted(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)


def test_what_nodes_meet_is_handed_on_once_with_their_names(caplog: pytest.LogCaptureFixture) -> None:
    met = [("n1", "no room"), ("n1", "no room"), ("n2", "no variable"), *((f"n{i}", "no room") for i in range(3, 8))]
    reporter = Heard()
    report_notes(met, reporter, rank=3)
    assert reporter.texts == ["on n1, n3, n4 and 3 more nodes: no room", "on n2: no variable"]
    report_notes([], reporter := Heard(), rank=0)
    assert not hasattr(reporter, "texts")
    for rank in (0, 1):
        caplog.clear()
        report_notes(met[:1], ListReporter(), rank)
        assert [record.getMessage() for record in caplog.records] == ["on n1: no room"] * (rank == 0)
