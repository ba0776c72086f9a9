"""``from bigbatch import train``: the run of ``bigbatch train``, in this process and without Ray."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision

from bigbatch import TrainConfig, train
from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.loop import train as loop
from bigbatch.train_loop.reporter import ListReporter
from helpers.tiny_training import untimed

CHANGES = {
    "model.name": "shufflenet_v2_x0_5", "epochs": 2, "batch.global_size": 32, "precise_bn": "off",
    "data.image_size": 16, "optimizer.peak_lr": 0.01,
}  # fmt: skip


@pytest.fixture
def config(tiny_images: Path) -> TrainConfig:
    return TrainConfig().replace_keys({**CHANGES, "data.name": str(tiny_images)})


def test_it_trains_what_the_loop_trains_and_keeps_a_folder(config, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    result = train(config, folder="kept")
    direct = loop.train(config, reporter=ListReporter())
    assert untimed(result.history) == untimed(direct.history)
    assert (result.best_epoch, result.best_val_top1) == (direct.best_epoch, direct.best_val_top1)
    stored = json.loads((tmp_path / "kept" / "result.json").read_text())
    assert stored["history"] == [record.to_dict() for record in result.history]
    assert TrainConfig.from_json((tmp_path / "kept" / "config.json").read_text()) == config
    assert "epoch 2/2" in capfd.readouterr().out
    content = torch.load("kept/checkpoints/latest.pt", weights_only=True)  # docs/training.md
    network = torchvision.models.shufflenet_v2_x0_5(num_classes=len(content["data"]["class_names"]))
    assert not any(network.load_state_dict(content["model"])) and content["data"]["class_names"] == ["dark", "light"]
    again = train(config, folder=tmp_path / "kept", workers=2)
    assert again.history == result.history, "it was resumed after its last epoch"
    assert json.loads(Path("kept/result.json").read_text())["record"]["workers"] == 1, "they trained nothing"
    assert "resumed after 2 finished epochs" in capfd.readouterr().out
    with pytest.raises(ConfigError, match="a run resumes with the configuration that it began with"):
        train(config.replace_keys({"epochs": 3}), folder="kept")


def test_without_a_folder_nothing_is_kept(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert len(train(config.replace_keys({"epochs": 1})).history) == 1
    assert not list((tmp_path / "tmp").glob("bigbatch-*")) and [path.name for path in tmp_path.iterdir()] == ["tmp"]


def test_wrong_input_is_one_line(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--workers must be at least 1; got 0\."):
        train(config, workers=0)
    with pytest.raises(ConfigError, match="no-such-folder"):
        train(config.replace_keys({"data.name": "no-such-folder"}))
    for wrong in ({"checkpoint_every_s": "x"}, {"folder": ""}, {"workers": 1.5}):
        with pytest.raises(ConfigError, match="--(checkpoint-every-s|output|workers) must"):
            train(config, **wrong)
    with pytest.raises(ConfigError, match="takes a TrainConfig; got 'best.json'"):
        train("best.json")  # type: ignore[arg-type]
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="starts its workers itself; got a process of torchrun"):
        train(config)


def test_an_interrupt_saves_and_the_same_call_goes_on(config: TrainConfig, tmp_path: Path) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from bigbatch import TrainConfig, train\n"
        "try: train(TrainConfig.from_json(sys.argv[1]), folder=sys.argv[2])\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)"
    )
    long, folder = config.replace_keys({"epochs": 300}), tmp_path / "kept"
    line = [sys.executable, "-c", code, long.to_json(), str(folder)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as kernel:
        assert kernel.stdout is not None
        first = next(line for line in kernel.stdout if line.startswith("epoch   1/300"))
        os.kill(kernel.pid, signal.SIGINT)
        rest = kernel.stdout.read()
    assert rest.endswith(f"Stopped and saved. The same call goes on from {folder}.\ninterrupted\n")
    assert kernel.returncode == 0 and list((folder / "checkpoints").iterdir())
    finished = sum(line.startswith("epoch ") for line in [first, *rest.splitlines()])
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True) as again:
        assert again.stdout is not None
        assert f"resumed after {finished} finished epochs\n" in iter(again.stdout.readline, "")
        os.kill(again.pid, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.without_ray
def test_several_workers_are_processes_of_torchrun(config: TrainConfig, tmp_path: Path) -> None:
    result = train(config, workers=2, folder=tmp_path / "kept")
    stored = json.loads((tmp_path / "kept" / "result.json").read_text())
    assert stored["record"]["workers"] == 2 and [(one.epoch, one.workers) for one in result.history] == [(1, 2), (2, 2)]
    assert stored["history"] == [record.to_dict() for record in result.history]
    assert result.best_val_top1 == max(record.val_top1 for record in result.history)
    with pytest.raises(ConfigError, match="a run resumes with the configuration"):
        train(config.replace_keys({"epochs": 3}), workers=2, folder=tmp_path / "kept")


def test_own_code_that_has_changed_is_refused_until_it_is_accepted(config: TrainConfig, tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "from torch import nn\n\n\ndef net(workload):\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, workload.num_classes))\n"
    )
    own = config.replace_keys({"model.name": f"{net}:net", "epochs": 1})
    first = train(own, folder=tmp_path / "kept")
    net.write_text(net.read_text() + "\n# a remark\n")
    with pytest.raises(ConfigError, match="--accept-changed-code"):
        train(own, folder=tmp_path / "kept")
    assert train(own, folder=tmp_path / "kept", accept_changed_code=True).history == first.history
