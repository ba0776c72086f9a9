"""Site profiles: what is wrong in a profile, which site this is."""

import re
from typing import Any

import pytest

from bigbatch.cluster.host import profiles
from bigbatch.cluster.host.profiles import InputError, find_site, format_time, load_site, parse_time

BUILT_IN = sorted(profiles.BUILT_IN.glob("*.toml"))


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda path: path.stem)
def test_every_profile_is_valid_and_names_its_sources(path):
    site = load_site(path)
    assert site.name == path.stem and site.title and site.source.startswith("http")
    for partition in site.partitions.values():
        if partition.cores_per_gpu and partition.cores_per_node:
            assert partition.cores_per_gpu * partition.gpus_per_node <= partition.cores_per_node
    if site.partitions:
        assert site.default_partition in site.partitions
        assert len(re.findall(r"https?://", path.read_text())) >= 3, "facts without a source"


MINE = """
name = "mine"
default_partition = "gpu"

[detect]
hosts = ["login?.mine.org"]

[partitions.gpu]
gpus_per_node = 8
max_time = "2-00:00:00"
"""


def test_a_users_own_profile_comes_first_and_needs_no_code(tmp_path):
    folder = tmp_path / "bigbatch" / "sites"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(MINE)
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    site = find_site("mine", env)
    assert site.partitions["gpu"].gpus_per_node == 8 and site.partitions["gpu"].max_time_s == 172800
    assert find_site(None, env, ["login1.mine.org"]) == site
    assert find_site(str(folder / "mine.toml"), {}) == site
    assert find_site(None, {**env, "BIGBATCH_SITE": "grete"}, ["login1.mine.org"]).name == "grete"
    (folder / "jean_zay.toml").write_text('name = "jean_zay"\ntitle = "my own"\n')
    assert find_site("jean_zay", env).title == "my own"


WHERE: dict[str, Any] = {
    "jean_zay": [({}, "jean-zay3"), ({"IDRPROJ": "abc"}, "anything")],
    "juwels_booster": [({}, "jwlogin22.juwels"), ({}, "jwb0129"), ({"SYSTEMNAME": "juwelsbooster"}, "x")],
    "finisterrae3": [({"STORE": "/a", "LUSTRE": "/b"}, "x")],
    "grete": [({}, "glogin9"), ({}, "ggpu201")],
    "generic": [({}, "laptop"), ({}, "jwlogin08.juwels"), ({"SYSTEMNAME": "jusuf"}, "x"), ({"STORE": "/a"}, "x")],
}


@pytest.mark.parametrize("name", WHERE)
def test_a_site_is_known_by_its_host_names_or_variables(name, tmp_path):
    for variables, host in WHERE[name]:
        assert find_site(None, {"XDG_CONFIG_HOME": str(tmp_path), **variables}, [host]).name == name, (variables, host)


WRONG = {
    "unknown key": ('name = "x"\nrequeu = true', "requeue"),
    "unknown key of a partition": ('name = "x"\n[partitions.a]\ngpu_per_node = 4', "gpus_per_node"),
    "no name": ('title = "x"', "name"),
    "text for a number": ('name = "x"\n[partitions.a]\ngpus_per_node = "4"', "whole number"),
    "time": ('name = "x"\n[partitions.a]\nmax_time = "long"', "20:00:00"),
    "default partition": ('name = "x"\ndefault_partition = "b"\n[partitions.a]', "'b'"),
    "partition as a value": ('name = "x"\n[partitions]\na = 4', "[partitions.a]"),
    "number of GPUs in their name": ('name = "x"\n[partitions.a]\ngres = "gpu:a100:4"', "e.g. gpu:a100"),
    "no TOML": ("name = x", "line 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_profile_is_refused_in_one_line_that_names_the_file(name, tmp_path):
    text, expected = WRONG[name]
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_site(path)
    message = str(caught.value)
    assert expected in message and "wrong.toml" in message and "\n" not in message


TIMES = {"10": 600, "10:30": 630, "20:00:00": 72000, "1-0": 86400, "1-12": 129600, "1-2:03": 93780,
         "4-04:00:00": 360000, "2-00:00:01": 172801, "20h": 72000, "90m": 5400, "2d": 172800}  # fmt: skip


def test_times_are_read_as_slurm_reads_them():
    for text, seconds in TIMES.items():
        assert parse_time(text) == seconds, text
        assert parse_time(format_time(seconds)) == seconds
    for text in ("", "soon", "1:2:3:4", "-5", "5s"):
        with pytest.raises(InputError):
            parse_time(text)
