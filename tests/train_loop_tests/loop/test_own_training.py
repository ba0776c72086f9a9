"""The loop with a model, a loss and an optimizer of a user's own: resumed, and told apart where it fails."""

from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.errors import NonFiniteLossError, OwnCodeError, in_one_line
from bigbatch.train_loop.loop import assembly
from helpers.loop_references import run
from helpers.tiny_training import CONFIG, StopsAt, TinySource, untimed

OWN = """
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, width, fails):
        super().__init__()
        self.hidden, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.drop, self.last, self.fails = nn.Dropout(0.2), nn.Linear(width, classes), fails

    def forward(self, images):
        if self.fails and self.training:
            return self.broken(images)
        return self.last(self.drop(F.relu(self.norm(self.hidden(images))).mean((2, 3))))

    def broken(self, images):
        return images[0, 0, 0, 0, 0]

def net(workload, width=5, fails=False):
    return Net(workload.num_classes, width, fails)

def focal(outputs, targets, gamma=2.0):
    assert outputs.dtype == torch.float32
    entropy = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-entropy).exp()) ** gamma * entropy).mean()

def nan(outputs, targets):
    return outputs.sum() * float("nan")

class Slow(torch.optim.Optimizer):
    '''Momentum and a number that only state_dict carries from step to step.'''
    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["number"] = state.get("number", 0) + 1
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad + group["weight_decay"] * p)
                p.sub_(group["lr"] / state["number"] ** 0.5 * mean)

def slow(param_groups, lr):
    return Slow(param_groups, lr)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    file = tmp_path / "my own.py"
    file.write_text(OWN)
    monkeypatch.setattr(assembly, "open_data", lambda *_: TinySource())
    torch.set_num_threads(1)
    words = {"model.name": "net", "loss": "focal", "optimizer.name": "slow"}
    keys: dict[str, object] = {key: f"{file}:{word}" for key, word in words.items()}
    return CONFIG.replace_keys({**keys, "label_smoothing": 0.0, "model.options.width": 7, "loss_options.gamma": 1.5})


@pytest.mark.parametrize("precision", ["off", "bf16", "fp16"])
def test_an_own_model_loss_and_optimizer_resume_in_mid_epoch_bit_for_bit(own, tmp_path, precision):
    config = own.replace_keys({"precision": precision})
    whole = run(config, checkpoint_dir=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped on request in epoch 2 after step 2"):
        run(config, reporter=StopsAt(6), checkpoint_dir=tmp_path / "stopped")
    torch.manual_seed(99)
    resumed = run(config, checkpoint_dir=tmp_path / "stopped")
    assert untimed(resumed) == untimed(whole)[1:]
    ends = [torch.load(tmp_path / name / "latest.pt", weights_only=True) for name in ("whole", "stopped")]
    for kind in ("model", "optimizer"):
        torch.testing.assert_close(ends[1][kind], ends[0][kind], rtol=0, atol=0)
    numbers = {state["number"] for state in ends[1]["optimizer"]["state"].values()}
    assert numbers == {resumed[-1].optimizer_steps}


def test_an_error_in_the_forward_pass_shows_the_users_frames_alone(own: TrainConfig) -> None:
    with pytest.raises(OwnCodeError) as failed:
        run(own.replace_keys({"model.options.fails": True}))
    text = str(failed.value)
    file = own.loss.rpartition(":")[0]
    assert text.startswith(f"the code of model.name={file}:net raised IndexError")
    assert f'File "{file}", line 18, in broken' in text and "return images[0, 0, 0, 0, 0]" in text
    assert "train_loop" not in text.replace(file, "") and "torch/nn" not in text
    line = in_one_line(text)
    assert "\n" not in line and line.startswith(f"the code of model.name={file}:net: IndexError")
    assert line.endswith(f'("{file}", line 18)') and in_one_line(line) == line


def test_our_own_errors_stay_what_they_are(own: TrainConfig) -> None:
    file = own.loss.rpartition(":")[0]
    with pytest.raises(NonFiniteLossError, match="training loss is nan in epoch 1 at its step 1"):
        run(own.replace_keys({"loss": f"{file}:nan", "loss_options": {}}))
    with pytest.raises(ConfigError, match="unexpected keyword argument 'depth'"):
        run(own.replace_keys({"model.options.depth": 2}))
