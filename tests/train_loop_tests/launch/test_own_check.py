"""Two batches before Ray starts: what is wrong with a user's components is said in time, and what is right passes."""

from pathlib import Path

import pytest
import torch

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.config.own_names import own_words
from bigbatch.train_loop.data.catalogue import look
from bigbatch.train_loop.data.packed import device_source
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.launch.checks import check_run_model, check_users_code
from bigbatch.train_loop.launch.command import make_output, make_run_plan
from bigbatch.train_loop.launch.lr_find import default_range, main
from helpers.packed_sets import pack_here, write_small_images

OWN = """
import torch
import torch.nn.functional as F
from torch import nn

def net(workload, width=4, classes=0, unused=False):
    model = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(width, classes or workload.num_classes))
    if unused:
        model[0].extra = nn.Linear(3, 3)
    return model

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 10)
    def forward(self, images):
        return {"logits": self.last(images.mean((2, 3)))}

def pair(workload):
    return Pair()

class Seen(nn.Sequential):
    def forward(self, images):
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(1))
        return super().forward(images)

class Object(nn.Sequential):
    def get_extra_state(self):
        return self.get_extra_state
    def set_extra_state(self, state):
        pass

def changes(workload, kind):
    return globals()[kind](nn.Flatten(), nn.Linear(3 * workload.image_size**2, workload.num_classes))

def mean(outputs, targets):
    return F.cross_entropy(outputs, targets)

def shapes(outputs, targets):
    return F.mse_loss(outputs, targets.float())

class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, outputs, targets):
        return F.cross_entropy(outputs * self.scale, targets)

learned = Learned()

class Several:
    def __init__(self, made=torch.ones(2)):
        self.made = made
    reset = lambda self: None
    update = lambda self, outputs, targets: None
    compute = lambda self: self.made

def several():
    return Several()

def nan(outputs, targets):
    return (outputs * 0 / 0).mean()

def no_gradient(outputs, targets):
    return torch.tensor(1.0)

class Keeps(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["when"] = __import__("datetime").datetime.now()

def keeps(param_groups, lr):
    return Keeps(param_groups, lr=lr)

def lbfgs(param_groups, lr):
    return torch.optim.LBFGS([p for g in param_groups for p in g["params"]], lr=lr)

def adam(param_groups, lr, beta=0.9):
    return torch.optim.Adam(param_groups, lr=lr, betas=(beta, 0.999))

def few(size=8):
    items = [(torch.randn(3, 8, 8), index % 2) for index in range(size)]
    return items, items

class Flat(nn.Flatten):
    def forward(self, items):
        print(len(items))
        return super().forward(items)

def with_batchnorm(workload):
    return nn.Sequential(Flat(), nn.Linear(192, 2), nn.BatchNorm1d(2))

"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(OWN)
    return path


def _config(file: Path, **keys: object) -> TrainConfig:
    own = ("model__name", "loss", "optimizer__name")
    words = {k: f"{file}:{v}" if k in own and ":" not in str(v) and v != "bce" else v for k, v in keys.items()}
    words |= {"metrics": [f"{file}:{name}" for name in keys["metrics"]]} if "metrics" in keys else {}  # type: ignore
    return TrainConfig().replace_keys({key.replace("__", "."): value for key, value in words.items()})


@pytest.mark.parametrize(
    "keys",
    [
        {"model__name": "net"},
        {"model__name": "net", "loss": "bce", "label_smoothing": 0.1},
        {"model__name": "net", "loss": "mean", "optimizer__name": "adam", "optimizer__options": {"beta": 0.8}},
        {"model__name": "net", "data__mix__mixup_alpha": 0.2, "ema_decay": 0.9, "precision": "fp16"},
        {"model__name": "net", "model__options": {"unused": True}},
    ],
    ids=str,
)
def test_components_that_fit_pass(file: Path, keys: dict[str, object]) -> None:
    config = _config(file, **keys)
    assert own_words(config) and not own_words(TrainConfig())
    check_users_code(config)


def test_a_packed_set_is_not_decoded_as_a_whole_for_a_few_images(file: Path, tmp_path: Path, monkeypatch) -> None:
    packed = pack_here(write_small_images(tmp_path / "images"), tmp_path / "packed")
    monkeypatch.setattr(device_source, "_decode", lambda *_: pytest.fail("it decodes all images"))
    check_users_code(_config(file, model__name="net", data__name=str(packed)))


def _check_all(config: TrainConfig) -> None:
    check_users_code(config)
    check_run_model(config, look(config.data).info)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"model__name": "net", "model__options": {"classes": 7}},
            r"must return logits \[N, 10\]; got a tensor \[4, 7\] from model.name=.*my.py:net.*workload.num_classes",
        ),
        ({"model__name": "pair"}, r"must return logits \[N, 10\]; got a dict from"),
        ({"loss": "learned", "model__name": "net"}, "loss must have no parameters of its own, for nothing would train"),
        (
            {"metrics": ["several"], "model__name": "net"},
            "must compute a number, or a dict of numbers; got a Tensor",
        ),
        ({"loss": "nan", "model__name": "net"}, "the loss of the first batch must be a finite number; got nan"),
        ({"loss": "no_gradient", "model__name": "net"}, "two batches must go through .* does not require grad"),
        ({"optimizer__name": "keeps", "model__name": "net"}, "must be tensors and numbers, .* a run cannot resume"),
        (
            {"model__name": "changes", "model__options": {"kind": "Object"}},
            "must be tensors and numbers, .* or a run cannot resume",
        ),
        (
            {"model__name": "changes", "model__options": {"kind": "Seen"}},
            'names and shapes .* cannot resume; got .*Unexpected key.* "seen". Make parameters and buffers',
        ),
        ({"optimizer__name": "lbfgs", "model__name": "net"}, r"two batches .*closure|decay"),
        ({"model__options": {"width": 3}}, "model.options are arguments of a function of your own"),
        ({"optimizer__options": {"x": 3}}, "optimizer.options are arguments of a function of your own"),
    ],
    ids=str,
)
def test_components_that_do_not_fit_are_refused_in_one_line(file: Path, keys: dict[str, object], words: str) -> None:
    config = _config(file, **keys)
    with pytest.raises(ConfigError, match=words) as refused:
        _check_all(config)
    assert "\n" not in str(refused.value)


def test_a_loss_that_does_not_fit_the_shapes_shows_the_users_line(file: Path) -> None:
    said = "(?s)the code of loss=.*my.py:shapes raised RuntimeError.*line 42, in shapes"
    with pytest.raises(OwnCodeError, match=said):
        check_users_code(_config(file, model__name="net", loss="shapes"))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_data_set_of_few_items_passes_as_one_batch(file: Path, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    keys: dict[str, object] = {"data__name": f"{file}:few", "data__options": {"size": size}}
    keys |= {"model__name": "with_batchnorm", "batch__global_size": size}
    check_users_code(_config(file, **keys))
    assert capsys.readouterr().out.split()[0] == str(size)


def test_a_micro_batch_of_one_image_is_refused_where_batchnorm_would(file: Path) -> None:
    keys: dict[str, object] = {"data__name": f"{file}:few", "model__name": "with_batchnorm", "batch__global_size": 4}
    check_users_code(_config(file, **keys, batch__micro_size=2))
    with pytest.raises(ConfigError, match="Expected more than 1 value per channel"):
        check_users_code(_config(file, **keys, batch__micro_size=1))


def test_train_takes_components_by_options_and_checks_them(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "my.py:net", "--loss", "my.py:mean", "--optimizer", "my.py:adam"]
    plan = make_run_plan([*words, "--set", "model.options.width=8"], "bigbatch train", None)
    assert plan.config.model.name == f"{file}:net" and plan.config.optimizer.name == f"{file}:adam"
    assert plan.config.loss == f"{file}:mean" and plan.config.model.options == {"width": 8}
    bad = ["--model", "my.py:net", "--loss", "my.py:nan"]
    with pytest.raises(ConfigError, match="got nan"):
        make_run_plan(bad, "bigbatch train", None)
    assert make_run_plan([*bad, "--no-check"], "bigbatch train", None).config.loss == f"{file}:nan"
    with pytest.raises(ConfigError, match="a key is set once; got --model and --set model.name"):
        make_run_plan([*words, "--set", "model.name=resnet18"], "bigbatch train", None)
    twice = ["--metric", "torchmetrics/MulticlassF1Score", "--set", 'metrics=["my.py:mean"]']
    with pytest.raises(ConfigError, match="a key is set once; got --metric and --set metrics"):
        make_run_plan([*words, *twice], "bigbatch train", None)
    with pytest.raises(SystemExit):
        make_run_plan(["--set", "epochs=2"], "bigbatch train", None)


def test_a_run_in_a_folder_of_other_code_is_refused_until_it_is_accepted(file: Path, tmp_path: Path) -> None:
    words = ["--model", f"{file}:net", "--no-check", "--output", str(tmp_path / "run")]
    make_output(make_run_plan(words, "bigbatch train", None)).close()
    make_run_plan(words, "bigbatch train", None)
    file.write_text(OWN + "\n# changed\n")
    with pytest.raises(ConfigError, match="a run goes on with the code that it began with; .*my.py:net' has changed"):
        make_run_plan(words, "bigbatch train", None)
    make_run_plan([*words, "--accept-changed-code"], "bigbatch train", None)


def test_lr_find_tests_an_own_optimizers_rate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    words = ["--model", f"{file}:net", "--optimizer", f"{file}:adam", "--set", "model.options.width=4", "batch=128"]
    assert main([*words, "--steps", "80"]) == 0
    assert "suggested peak lr" in capsys.readouterr().out
    first, last = default_range(_config(file, optimizer__name="adam").optimizer)
    assert first <= 1e-6 and last >= 1
