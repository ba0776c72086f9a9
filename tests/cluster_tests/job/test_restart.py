"""A restart resumes the study, without the nodes that were bad where Slurm has others."""

from __future__ import annotations

import pytest

from bigbatch.cluster.job import options, restart
from helpers.stand_in_slurm import stand_in


def test_a_restart_resumes_the_study_of_the_first_start(tmp_path):
    chosen = options.parse_job_options(["--space", "smoke", "--output", "out"])
    folder = options.study_folder(chosen, "bigbatch-5", tmp_path)
    assert folder == tmp_path / "out" / "bigbatch-5"
    first = options.driver_command(chosen, "bigbatch-5", "1.2.3.4:5", folder, again=False)
    assert first[2:] == ["--space", "smoke", "--output", "out", "--study", "bigbatch-5", "--address", "1.2.3.4:5"]
    folder.mkdir(parents=True)
    (folder / "study.json").touch()
    assert "--resume" in options.driver_command(chosen, "bigbatch-5", "a", folder, again=True)
    named = options.parse_job_options(["--study=mine", "--output", str(tmp_path / "out")])
    folder.rename(folder.with_name("mine"))
    folder = options.study_folder(named, "bigbatch-5", tmp_path)
    assert folder == tmp_path / "out" / "mine"
    assert "--resume" not in options.driver_command(named, "bigbatch-5", "a", folder, again=False), "the user decides"
    assert "--resume" in options.driver_command(named, "bigbatch-5", "a", folder, again=True)


def sinfo(*nodes: tuple[str, str, str]) -> str:
    """Prints rows as `sinfo --Format=NodeHost:256,Gres:1024,Features:4096` does."""
    return "\n".join(f"printf '%-256s%-1024s%-4096s\\n' {n} '{gres}' '{features}'" for n, gres, features in nodes)


@pytest.mark.parametrize(
    ("fields", "bad", "may"),
    [
        ({}, ["cpu1"], True),
        ({"NumNodes": "4"}, ["cpu1"], False),
        ({"TresPerNode": "gres:gpu:2"}, ["big"], False),
        ({"TresPerNode": "gres/gpu:2"}, ["big"], False),
        ({"TresPerNode": "gres:gpu:1"}, ["big"], True),
        ({"TresPerNode": "gres/gpu:a100:1"}, ["big"], False),
        ({"TresPerNode": "gres/gpu:a100:1", "NumNodes": "1"}, ["big"], False),
        ({"TresPerJob": "gres:gpu:4", "NumNodes": "1"}, ["small"], True),
        ({"TresPerJob": "gres:gpu:4", "NumNodes": "1"}, ["big"], False),
        ({"Features": "fast", "NumNodes": "1"}, ["small"], True),
        ({"Features": "fast&new", "NumNodes": "1"}, ["big"], False),
        ({"ReqNodeList": "big"}, ["cpu1"], False),
        ({"NumNodes": "3"}, ["cpu1"], True),
        ({"NumNodes": "3", "ExcNodeList": "cpu2"}, ["cpu1"], False),
        ({"TresPerTask": "cpu=4"}, ["cpu1"], True),
        ({"TresPerTask": "cpu=4,gres/gpu:a100=1"}, ["small"], True),
        ({"TresPerTask": "cpu=4,gres/gpu:a100=1"}, ["big"], False),
        ({"TresPerTask": "cpu=4", "TresPerJob": "gres/gpu:4"}, ["big"], False),
    ],
)
def test_a_node_is_avoided_only_if_enough_others_have_what_the_job_wants(fields, bad, may, tmp_path, monkeypatch):
    """Two nodes with GPUs, one of them with two of another type, and two without any."""
    rows = sinfo(
        ("big", "gpu:a100:4(S:0-1)", "fast,new"),
        ("small", "gpu:v100:1(S:0),shard:4", "fast"),
        ("cpu1", "(null)", "(null)"),
        ("cpu2", "(null)", "fast"),
    )
    known = {"Partition": "main", "NumNodes": "1", **fields}
    answer = "echo 'JobId=7 " + " ".join(f"{name}={value}" for name, value in known.items()) + "'"
    answer = f'case "$*" in *hostnames*) echo "${{3}}";; *) {answer};; esac'
    stand_in(tmp_path, monkeypatch, scontrol=answer, sinfo=rows)
    assert restart.may_exclude("7", bad) is may


def test_a_search_in_a_database_goes_on_with_its_storage(tmp_path):
    (tmp_path / "study.json").touch()
    assert restart.resume_options(tmp_path).endswith("--resume, and its --storage if it had one")
    (tmp_path / "optuna.journal").touch()
    assert restart.resume_options(tmp_path).endswith("--resume")
