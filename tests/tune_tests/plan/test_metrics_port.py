"""``--metrics-port``: what is refused, in one line, before anything starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bigbatch.train_loop.config import ConfigError
from bigbatch.tune.plan.arguments import parse_options, tune_parser
from bigbatch.tune.plan.option_checks import check_metrics_port
from bigbatch.tune.plan.options import SearchOptions


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("text", ["80", "1023", "65536", "0", "x", "9400.5", "94 00", "٩٤٠٠"])
def test_only_a_port_that_needs_no_root_is_one(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(tune_parser("bigbatch tune"), [f"--metrics-port={text}"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and len(error.splitlines()) == 1
    assert "--metrics-port" in error and repr(text) in error and "Write e.g. 9400" in error


def test_a_taken_port_is_refused_and_another_one_named(taken: int) -> None:
    with pytest.raises(ConfigError, match=rf"free port of this machine; got {taken} \(.*\). Write another, e.g. \d+"):
        check_metrics_port(taken, "local")


def test_nodes_of_another_cluster_have_opened_their_ports_themselves(taken: int) -> None:
    refused = []
    for address in ("local", "auto", "n1:6379"):
        try:
            check_metrics_port(taken, address)
        except ConfigError:
            refused.append(address)
    assert refused == ["local"]


def test_what_a_killed_search_left_behind_is_ended_first() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    check_metrics_port(port, "local", sweep=server.close)
    assert server.fileno() == -1, "it was swept only because the port was taken"
    check_metrics_port(port, "local", sweep=pytest.fail)


def test_a_resume_does_not_open_the_port_by_itself() -> None:
    assert "metrics_port" not in SearchOptions(metrics_port=9400).kept()
    assert SearchOptions(study="s").over({"metrics_port": 9400}).metrics_port is None
