"""``bigbatch export --grafana``: the dashboard has our gauges and some of Ray's, and Prometheus' own checker agrees."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bigbatch.tune.commands.export import main
from bigbatch.tune.search.show_gauges import GAUGES
from helpers.commands import refused_export
from helpers.paths import ROOT
from helpers.recorded_studies import recorded_study

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's package prometheus has promtool")


RAYS = ("ray_node_gpus_utilization", "ray_node_gram_used", "ray_node_gpu_power_milliwatts")


def test_ray_has_the_gauges_of_its_own_that_the_dashboard_shows() -> None:
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    assert {name.removeprefix("ray_") for name in RAYS} <= METRICS_GAUGES.keys()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """The files for a study that has begun, and has no trial yet."""
    recorded_study(tmp_path / "s", 0).close()
    assert main([str(tmp_path / "s"), "--grafana", str(tmp_path / "out" / "deep")]) == 0
    return tmp_path / "out" / "deep"


def dashboard(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "grafana/dashboards/bigbatch.json").read_text())
    return found


def expressions(folder: Path) -> list[str]:
    return [target["expr"] for panel in dashboard(folder)["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_shows_each_gauge_that_the_code_defines_and_no_other(exported: Path) -> None:
    names = [name for text in expressions(exported) for name in re.findall(r"ray_\w+", text)]
    assert sorted(names) == sorted([*(f"ray_{kind.name}" for kind in GAUGES), *RAYS])
    kept = re.search(r'regex: "(.*)", action: keep', (exported / "prometheus.yml").read_text())
    assert kept is not None and all(re.fullmatch(kept[1], name) for name in names), "Prometheus keeps them"
    meanings = {panel["description"] for panel in dashboard(exported)["panels"] if "targets" in panel}
    assert {kind.meaning for kind in GAUGES} <= meanings
    chosen = [v["definition"] for v in dashboard(exported)["templating"]["list"] if "definition" in v]
    assert {name for text in chosen for name in re.findall(r"ray_\w+", text)} <= set(names)


def test_a_series_is_told_apart_by_the_tags_that_its_gauge_has(exported: Path) -> None:
    tags = {f"ray_{kind.name}": kind.tags for kind in GAUGES}
    for text in (text for text in expressions(exported) if "bigbatch" in text):
        match = re.fullmatch(r"max by \(([\w, ]+)\) \((ray_\w+)\{(.*)\}\)", text)
        assert match is not None, text
        assert tuple(match[1].split(", ")) == tags[match[2]]
        assert set(re.findall(r"(\w+)=~", match[3])) <= set(tags[match[2]])
    names = {variable["name"] for variable in dashboard(exported)["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard(exported)["panels"])))
    assert used <= names


def test_no_panel_covers_another(exported: Path) -> None:
    cells: set[tuple[int, int]] = set()
    panels = dashboard(exported)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for place in (panel["gridPos"] for panel in panels):
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & cells and all(x < 24 for x, _ in own), "Grafana has 24 columns"
        cells |= own


def test_grafana_is_told_where_the_files_are(exported: Path) -> None:
    provider = (exported / "grafana/provisioning/dashboards/bigbatch.yml").read_text()
    folder = re.search(r'path: "(.*)"', provider)
    assert folder is not None and (Path(folder[1]) / "bigbatch.json").is_file()
    source = (exported / "grafana/provisioning/datasources/bigbatch.yml").read_text()
    assert "type: prometheus\n" in source


@needs_promtool
def test_promtool_accepts_the_configuration_and_each_expression(exported: Path, tmp_path: Path) -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", exported / "prometheus.yml"], capture_output=True, text=True, timeout=120
    )
    assert checked.returncode == 0 and "SUCCESS" in checked.stdout, checked.stderr
    rules = [{"record": f"panel{i}", "expr": text} for i, text in enumerate(expressions(exported))]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    checked = subprocess.run(
        ["promtool", "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, timeout=120
    )
    assert checked.returncode == 0 and f"{len(rules)} rules found" in checked.stdout, checked.stderr


def test_the_same_command_for_another_study_adds_it(exported: Path, tmp_path: Path) -> None:
    recorded_study(tmp_path / "other", 0).close()
    for _ in range(2):
        assert main([str(tmp_path / "other"), "--grafana", str(exported)]) == 0
    links = {path.name: path.readlink() for path in (exported / "targets").iterdir()}
    assert links == {f"{name}.json": tmp_path / name / "metrics_targets.json" for name in ("s", "other")}


def test_the_nodes_of_a_running_search_stay_as_they_are(exported: Path, tmp_path: Path) -> None:
    file = tmp_path / "s" / "metrics_targets.json"
    assert json.loads(file.read_text()) == []
    file.write_text('[{"targets": ["n1:9400"]}]')
    assert main([str(tmp_path / "s"), "--grafana", str(exported)]) == 0
    assert json.loads((exported / "targets" / "s.json").read_text()) == [{"targets": ["n1:9400"]}]


def test_what_cannot_be_written_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_study(tmp_path / "s", 0).close()
    (tmp_path / "file").write_text("")
    assert "--grafana must be a place that can be written" in refused_export(
        capsys, tmp_path / "s", "--grafana", tmp_path / "file" / "g"
    )
    assert "has no *, ? or [" in refused_export(capsys, tmp_path / "s", "--grafana", tmp_path / "g[1]")
    assert "no-such-study" in refused_export(capsys, tmp_path / "no-such-study", "--grafana", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_the_page_about_metrics_has_the_same_gauges() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(bigbatch_\w+)` \| (.*?) \| (.*) \|$", text, flags=re.MULTILINE)
    expected = [(kind.name, ", ".join(f"`{tag}`" for tag in kind.tags), kind.meaning) for kind in GAUGES]
    assert rows == expected
