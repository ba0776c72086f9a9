"""Losses against the published formulas in float64, written out here."""

import numpy as np
import pytest
import torch

from bigbatch.train_loop.config import ConfigError, TrainConfig
from bigbatch.train_loop.data.pixels import mixing
from bigbatch.train_loop.model.losses import loss_function, training_loss

CPU = torch.device("cpu")


def targets(labels: np.ndarray, classes: int, smoothing: float) -> np.ndarray:
    q = np.full((len(labels), classes), smoothing / classes)
    q[np.arange(len(labels)), labels] += 1 - smoothing
    return q


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(smoothing: float) -> None:
    rng = np.random.default_rng(0)
    z, labels = 3 * rng.standard_normal((7, 5)), rng.integers(0, 5, 7)
    q = targets(labels, 5, smoothing)
    p = 1 / (1 + np.exp(-z))
    softmax = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    expected = {
        "bce": -(q * np.log(p) + (1 - q) * np.log(1 - p)).mean(),
        "cross_entropy": -(q * np.log(softmax)).sum(1).mean(),
    }
    for kind, value in expected.items():
        found = training_loss(torch.tensor(z), torch.tensor(labels), kind, smoothing)
        assert found.item() == pytest.approx(value, rel=1e-12)
        narrow = training_loss(torch.tensor(z), torch.tensor(labels.astype(np.int32)), kind, smoothing)
        assert narrow.item() == found.item()


def test_bce_is_finite_at_logits_that_saturate_the_sigmoid() -> None:
    z = torch.tensor([[200.0, -200.0]])
    assert training_loss(z, torch.tensor([1]), "bce", 0.0).item() == pytest.approx(200.0)


def mixed_shares() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Classes a and b of five images, and their shares; the last image is mixed with one of its own class."""
    a, b = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([3, 3, 1, 0, 0])
    one_hot = torch.nn.functional.one_hot
    return a, b, 0.3 * one_hot(a, 4).double() + 0.7 * one_hot(b, 4).double()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_mixed_classes_is_the_mixture_of_their_losses(smoothing: float) -> None:
    """It is linear in the targets: 0.3·A + 0.7·B costs 0.3 of A's loss and 0.7 of B's (Zhang et al. 2018)."""
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b, shares = mixed_shares()
    mixed = training_loss(z, shares, "cross_entropy", smoothing)
    apart = [training_loss(z, labels, "cross_entropy", smoothing) for labels in (a, b)]
    assert mixed.item() == pytest.approx(0.3 * apart[0].item() + 0.7 * apart[1].item(), rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_bce_has_target_1_for_every_class_of_a_mixed_image(smoothing: float) -> None:
    """Wightman et al. 2021, §3.1: mixup and cutmix make an image of which both classes are true."""
    z = 3 * np.random.default_rng(0).standard_normal((5, 4))
    a, b, shares = mixed_shares()
    q = np.full((5, 4), smoothing / 4)
    for row, classes in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        for label in set(classes):
            q[row, label] += 1 - smoothing
    p = 1 / (1 + np.exp(-z))
    want = -(q * np.log(p) + (1 - q) * np.log(1 - p)).mean()
    assert training_loss(torch.tensor(z), shares, "bce", smoothing).item() == pytest.approx(want, rel=1e-12)
    few = torch.tensor([[0.001, 0.999, 0.0, 0.0]], dtype=torch.float64)
    both = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    losses = [training_loss(torch.tensor(z[:1]), labels, "bce", smoothing).item() for labels in (few, both)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("way", ["mixup", "cutmix"])
def test_an_image_that_is_mixed_with_nothing_keeps_one_class(way: str) -> None:
    """A rectangle that lies outside or a share of 1 leaves the other class out."""
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    mixed = mixing.mixup(images, labels, 4, 1.0) if way == "mixup" else mixing.cutmix(images, labels, 4, (3, 3, 0, 4))
    shares = mixed[1]
    z = torch.randn(4, 4)
    assert training_loss(z, shares, "bce", 0.0).item() == training_loss(z, labels, "bce", 0.0).item()


def _own_loss(tmp_path, body):
    file = tmp_path / "my_loss.py"
    file.write_text(f"import torch\nimport torch.nn.functional as F\n\n{body}\n")
    return f"{file}:loss"


def test_an_own_loss_is_the_loss_of_training_and_gets_its_options_and_any_structure(tmp_path):
    word = _own_loss(
        tmp_path,
        "def loss(outputs, targets, weight=1.0):\n"
        "    assert outputs['mask'].dtype == torch.float32 and outputs['kind'].dtype == torch.int64\n"
        "    return weight * F.mse_loss(outputs['mask'], targets[0]) + outputs['kind'].sum()",
    )
    config = TrainConfig().replace_keys({"loss": word, "loss_options.weight": 3.0})
    outputs = {"mask": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "kind": torch.tensor([2])}
    found = loss_function(config, CPU)(outputs, (torch.tensor([0.0, 4.0]), "name"))
    assert found.shape == () and found.dtype == torch.float32
    assert found.item() == pytest.approx(3 * (1 + 4) / 2 + 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def loss(outputs, targets):\n    return 3.0", "got a float of"),
        ("def loss(outputs, targets):\n    return outputs", r"got a tensor \[2, 3\] of float32 of"),
        ("def loss(outputs, targets):\n    return targets.sum()", r"got a tensor \[\] of int64 of"),
    ],
)
def test_an_own_loss_that_returns_no_number_is_refused(tmp_path, body, words):
    loss = loss_function(TrainConfig(loss=_own_loss(tmp_path, body)), CPU)
    with pytest.raises(ConfigError, match=f"loss must return the mean loss, one number; {words}"):
        loss(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_a_class_gets_its_options_at_once_and_its_buffers_are_where_the_network_is(tmp_path):
    (tmp_path / "mine.py").write_text("""import torch

class Weighed(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))

    def forward(self, outputs, targets):
        assert self.weight.device == outputs.device, self.weight.device
        return torch.nn.functional.cross_entropy(outputs, targets, self.weight)

one = Weighed([1.0, 3.0])
""")
    elsewhere = torch.device("meta")  # of which each machine has one
    outputs, targets = torch.zeros(2, 2, device=elsewhere), torch.zeros(2, dtype=torch.int64, device=elsewhere)
    for name, options in (("Weighed", {"loss_options.weight": [1.0, 3.0]}), ("one", {})):
        config = TrainConfig(loss=f"{tmp_path / 'mine.py'}:{name}").replace_keys(options)
        assert loss_function(config, elsewhere)(outputs, targets).device == elsewhere


def test_an_own_loss_refuses_label_smoothing_and_options_it_does_not_take(tmp_path):
    word = _own_loss(tmp_path, "def loss(outputs, targets):\n    return outputs.mean()")
    with pytest.raises(ConfigError, match="label_smoothing is for the built-in losses; got 0.1"):
        TrainConfig(loss=word, label_smoothing=0.1)
    with pytest.raises(ConfigError, match="gamma"):
        loss_function(TrainConfig(loss=word).replace_keys({"loss_options.gamma": 2}), CPU)
