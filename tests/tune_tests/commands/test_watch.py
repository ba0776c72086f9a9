"""``bigbatch watch``: the report of a running study over loopback, for the token alone, and newer when the study is."""

import http.client
import importlib.util
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bigbatch.train_loop.config import TrainConfig
from bigbatch.tune.commands.show import show_main
from bigbatch.tune.commands.watch import watch_main
from bigbatch.tune.report.live_report import LiveReport, WatchServer
from bigbatch.tune.storage.store import StudyStore
from bigbatch.tune.storage.summary import who_runs
from helpers.browser import chromium, opened_browser
from helpers.processes import clean_environment
from helpers.recorded_studies import add_recorded_trial, recorded_study
from helpers.refusals import refused_command
from helpers.waiting import wait_until

HOLDS = """import sys
from pathlib import Path
from bigbatch.cluster.host.lease import Lease
Lease(Path(sys.argv[1])).take()
print("held", flush=True)
sys.stdin.read()"""
"""A driver that holds the folder in its argument, until it is killed."""


def trials_page(folders: Sequence[Path]) -> bytes:
    """A small page in place of the report, which has a test of its own: the lines of the journals."""
    lines = sum(len((folder / "optuna.journal").read_bytes().splitlines()) for folder in folders)
    return f"<!doctype html><title>{lines} lines</title><p id=lines>{lines}</p>".encode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[WatchServer, Path]]:
    folder = tmp_path / "s"
    recorded_study(folder, 2).close()
    live = LiveReport([folder], trials_page, 0.05)
    with WatchServer(live) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        live.start()
        wait_until(lambda: live.latest.page, "no report")
        yield server, folder
        live.stop()
        server.shutdown()
        thread.join(60)


def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.getheaders())


def test_only_the_token_opens_it(served):
    server, _ = served
    assert len(server.token) >= 32 and server.server_address[0] == "127.0.0.1"
    paths = ["/", "/report", "/state", "//report", "/x/report", "/%C3%A9/report"]
    for path in (*paths, f"/{server.token[:-1]}/report", f"?{server.token}/"):
        status, content, _ = get(server.port, path)
        assert status == 404 and server.token.encode() not in content
    assert get(server.port, f"/{server.token}/other")[0] == 404
    assert get(server.port, f"/{server.token}/../state")[0] == 404
    assert get(server.port, f"/{server.token}/state", "POST")[0] == 501
    status, frame, headers = get(server.port, f"/{server.token}/")
    assert status == 200 and b"<iframe" in frame and headers["Referrer-Policy"] == "no-referrer"
    status, report, headers = get(server.port, f"/{server.token}/report?1")
    assert status == 200 and headers["Cache-Control"] == "no-store" and b"lines" in report
    assert server.token.encode() not in frame + report


def grow(folder: Path) -> None:
    store = StudyStore.open(folder, None)
    add_recorded_trial(store.study, random.Random(5), TrialState.COMPLETE)
    store.close()


def test_a_study_that_grows_has_a_newer_report_and_a_broken_one_keeps_the_last(served):
    server, folder = served
    first = json.loads(get(server.port, f"/{server.token}/state")[1])
    grow(folder)
    wait_until(lambda: json.loads(server.live.state())["tag"] != first["tag"], "no newer report")
    newer = json.loads(server.live.state())
    assert newer["problem"] == ""
    lines = len((folder / "optuna.journal").read_bytes().splitlines())
    wait_until(lambda: f"{lines} lines".encode() in server.live.latest.page, "it is of a part")
    (folder / "optuna.journal").unlink()
    wait_until(lambda: "FileNotFoundError" in json.loads(server.live.state())["problem"], "nobody says it")
    assert f"{lines} lines".encode() in server.live.latest.page


def test_nothing_is_written_for_nobody(tmp_path):
    (tmp_path / "study.json").write_text("1")
    now, made = 0.0, 0

    def make(_: Sequence[Path]) -> bytes:
        nonlocal made
        made += 1
        return b"page"

    live = LiveReport([tmp_path], make, 10.0, clock=lambda: now)
    live.look()
    live.look()
    assert made == 1, "nothing has changed"
    now = 3600.0
    (tmp_path / "study.json").write_text("12")
    live.look()
    assert made == 1, "nobody has asked for an hour"
    live.state()
    live.look()
    assert made == 2


def test_writing_takes_a_hundredth_of_the_time_at_most_and_the_end_of_a_search_is_seen_at_once(tmp_path):
    folder = tmp_path / "s"
    recorded_study(folder, 1).close()
    now, asked, made, wanted = 0.0, 0, 0, 0.0

    def clock() -> float:
        nonlocal asked
        asked += 1
        return now

    class BetweenLooks(threading.Event):
        """Time jumps only between two looks: none of them begins before a jump and ends after it."""

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            now = max(now, wanted)
            return super().wait(timeout)

    def make(_: Sequence[Path]) -> bytes:
        nonlocal now, made
        now, made = now + 2.0, made + 1
        return b"page"

    def wait_for_looks(versions: int, at: float) -> None:
        before = asked
        wait_until(lambda: asked > before + 9 and made >= versions, f"not written at {at}")

    live = LiveReport([folder], make, 0.01, clock)
    live._stop = BetweenLooks()
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"held\n"
        live.start()
        wait_until(lambda: made == 1, "no report")
        # The first one loads modules and is not counted. The second one takes the seconds from 10 to 12.
        for number, (at, expected) in enumerate(((10.0, 2), (209.0, 2), (210.0, 3), (260.0, 3))):
            wanted = at
            wait_for_looks(made, at)  # time has jumped then
            (folder / "study.json").write_text(str(number))
            live.state()
            wait_for_looks(expected, at)
            assert made == expected, f"at {at} s"
        driver.kill()
    wait_until(lambda: made == 4, "its end is not seen")
    live.stop()


def test_a_driver_that_was_killed_is_seen_though_no_file_changes(tmp_path):
    folder = tmp_path / "s"
    recorded_study(folder, 1).close()
    live = LiveReport([folder], lambda folders: who_runs(folders[0]).encode(), 1.0)
    command = [sys.executable, "-c", HOLDS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment()) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"held\n"
        live.look()
        running = live.latest
        assert f"process {driver.pid}".encode() in running.page
        driver.kill()
    live.look()
    assert live.latest.page == b"" and live.latest.tag != running.tag


def test_a_reader_that_goes_in_the_middle_is_no_error(served, capfd):
    server, _ = served
    server.live.latest = replace(server.live.latest, page=random.Random(0).randbytes(50_000_000))
    reset = struct.pack("ii", 1, 0)  # closing sends a reset at once, as a browser does that loads a page again
    threads = threading.active_count()
    for _ in range(3):
        reader = socket.create_connection(("127.0.0.1", server.port))
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        reader.sendall(f"GET /{server.token}/report HTTP/1.1\r\n\r\n".encode())
        assert reader.recv(10)
        reader.close()
    wait_until(lambda: threading.active_count() <= threads, "an answer goes on")
    assert get(server.port, f"/{server.token}/state")[0] == 200
    assert capfd.readouterr().err == ""


def test_the_address_works_without_its_last_slash(served):
    server, _ = served
    status, _, headers = get(server.port, f"/{server.token}")
    assert status == 301 and headers["Location"] == f"/{server.token}/" and headers["Referrer-Policy"] == "no-referrer"
    assert get(server.port, f"/{server.token[:-1]}")[0] == 404


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="needs plotly: pip install plotly")
@pytest.mark.xdist_group("chromium")
def test_a_browser_sees_the_report_itself_and_the_newer_one(tmp_path):
    folder = tmp_path / "seen"
    recorded_study(folder, 6).close()
    command = [sys.executable, "-m", "bigbatch", "watch", str(folder), "--every", "0.5"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(), cwd=tmp_path
    )
    try:
        said = "".join(process.stdout.readline() for _ in range(5))
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\S+/", said)
        assert found and f"ssh -N -L {found[1]}:127.0.0.1:{found[1]} " in said
        with opened_browser() as page:
            page.send("Page.navigate", url=found[0])

            def shown() -> str:
                return page.evaluate("document.documentElement?.dataset.shown || ''")

            wait_until(shown, lambda: str(page.errors), every_s=0.2)
            first = shown()
            inside = "document.getElementById('report').contentDocument"
            assert page.evaluate(f"{inside}.querySelector('h1').textContent") == "seen"
            drawn = f"{inside}.documentElement?.dataset.drawn || ''"
            wait_until(lambda: page.evaluate(drawn), lambda: str(page.errors), every_s=0.2)
            grow(folder)
            wait_until(lambda: shown() != first, lambda: str(page.errors), every_s=0.2)
            assert page.errors == []
            assert all(url.startswith(found[0]) for url in page.requests)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()


def test_wrong_input_meets_one_line(tmp_path, capsys):
    recorded_study(tmp_path / "s", 1).close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for options, words in (
            ([str(tmp_path / "none")], "there is none called"),
            ([str(tmp_path / "s"), "--port", str(port)], "a port that nobody uses"),
            ([str(tmp_path / "s"), "--port", "70000"], "--port must be from 1"),
            ([str(tmp_path / "s"), "--every", "0"], "--every must be more than 0"),
            ([str(tmp_path / "s"), "--every", "nan"], "--every must be more than 0"),
            ([str(tmp_path / "s"), "--every", "1e12"], "--every must be more than 0 and at most"),
        ):
            assert words in refused_command(capsys, watch_main, options)


EPOCHS = 2


def finish(study: optuna.Study, value: float | None, rate: float, **attrs: object) -> int:
    """A trial that ended with ``value``; None: it diverged."""
    study.enqueue_trial({}, user_attrs=attrs)
    trial = study.ask()
    trial.set_user_attr("config", TrainConfig(epochs=EPOCHS).replace_keys({"optimizer.peak_lr": rate}).to_dict())
    for epoch in range(1, EPOCHS + 1):
        trial.set_user_attr(f"epoch/{epoch:05d}", {"epoch": epoch, "val_top1": value, "train_s": 1.0})
        if value is not None:
            trial.report(value, epoch)
    if value is None:
        trial.set_user_attr("diverged", True)
    study.tell(trial, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE)
    return trial.number


def test_the_best_is_the_one_with_the_best_mean_over_fresh_seeds(tmp_path: Path, capsys) -> None:
    store = StudyStore.create(tmp_path / "s", "s", {"trials": 3, "max_epochs": EPOCHS}, None)
    lucky, steady, wild = (finish(store.study, value, rate) for value, rate in ((0.9, 0.5), (0.8, 0.25), (0.7, 0.125)))
    for number, values in ((lucky, (0.6, 0.7)), (steady, (0.75, 0.81)), (wild, (0.99, None))):
        for seed, value in enumerate(values, 1):
            finish(store.study, value, 1.0, confirms=number, confirmation_seed=seed)
    store.study.enqueue_trial({}, user_attrs={"confirms": steady, "confirmation_seed": 3})  # was interrupted
    again = store.study.ask()
    again.set_user_attr("config", TrainConfig(epochs=EPOCHS).to_dict())
    again.set_user_attr("epoch/00001", {"epoch": 1, "val_top1": 0.1, "train_s": 1.0})
    store.refresh(force=True)
    store.close()
    assert show_main([str(tmp_path / "s")]) == 0
    text = capsys.readouterr().out
    assert "3/3: 3 ran to their end; 7 confirmations (1 not ended)" in text
    assert "The best is trial 1: validation top-1 78.0 %, the mean of 2 fresh seeds," in text
    assert "80.0 % when it was chosen" in text and "Confirmed with 2 fresh seeds: 75.0 and 81.0 %" in text
    lines = text.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("*")] == [["*", "1"]]
    assert sum("confirms 1" in line for line in lines) == 2 and sum("confirms 2" in line for line in lines) == 1


def test_limits_of_another_type_in_study_json_count_as_missing(tmp_path: Path, capsys) -> None:
    limits = {"trials": 3, "max_epochs": EPOCHS, "budget_gpu_hours": "2", "time_budget_s": [60]}
    StudyStore.create(tmp_path / "s", "s", limits, None).close()
    assert show_main([str(tmp_path / "s")]) == 0
    assert "limits     3 trials; at most 2 epochs each\n" in capsys.readouterr().out


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_user_id_without_a_name_stands_in_the_tunnel_as_its_number() -> None:
    """Of a container: no entry in its passwd, and no LOGNAME."""
    code = (
        "import os, socket; from bigbatch.tune.commands import watch\n"
        "socket.getfqdn()  # loads modules, which that user may not read\n"
        "os.setuid(54321); print(watch._lines('', 8, ['s']))"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("LOGNAME", "USER", "LNAME", "USERNAME")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert "127.0.0.1:8 54321@" in done.stdout, done.stderr
