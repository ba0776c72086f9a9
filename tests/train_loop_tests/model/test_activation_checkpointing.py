"""Activation checkpointing of networks that are chains of layers: what it must not change, and what it saves."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torchvision
from torch import nn

from bigbatch.train_loop.config import ConfigError, ModelConfig
from bigbatch.train_loop.model.activation_checkpointing import checkpoint_blocks


def chain() -> nn.Sequential:
    """In-place layers, one that occurs twice, BatchNorm, dropout, a chain inside."""
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), relu, nn.Dropout(0.2),
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardswish(inplace=True)),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), relu, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


class Stages(nn.Module):
    """Chains as attributes, of which one is too short."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = chain()[:-1], nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.features(x))
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "chain": chain,
    "stages": Stages,
    "resnet18": partial(torchvision.models.resnet18, num_classes=4),
    "efficientnet": partial(torchvision.models.efficientnet_b0, num_classes=4),
    "vit": partial(torchvision.models.VisionTransformer, 32, 8, 9, 2, 16, 32, dropout=0.1, num_classes=4),
}


def trained(network: nn.Module) -> tuple[list[float], nn.Module]:
    """Losses of two steps without an optimizer, and the network with its last gradients."""
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    losses = []
    for seed in range(2):
        torch.manual_seed(seed)
        network.zero_grad()
        loss = network.train()(images).square().sum()
        loss.backward()
        losses.append(loss.item())
    return losses, network


@pytest.mark.parametrize("name", NETWORKS)
def test_neither_losses_nor_gradients_nor_statistics_change(name: str) -> None:
    torch.manual_seed(0)
    plain = NETWORKS[name]()
    other = copy.deepcopy(plain)
    checkpoint_blocks(other, name)
    losses, plain = trained(plain)
    again, other = trained(other)
    assert again == losses
    for (key, a), b in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=key)
    assert list(plain.state_dict()) == list(other.state_dict())
    for (key, one), two in zip(plain.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(one, two), key


@contextlib.contextmanager
def keeping(network: nn.Module) -> Iterator[dict[int, int]]:
    """Elements that are kept for the backward pass, by address."""
    owned = {t.data_ptr() for t in network.state_dict().values()}
    sizes: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in owned:
            sizes[t.data_ptr()] = t.numel()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield sizes


def kept(network: nn.Module) -> int:
    with keeping(network) as sizes:
        network(torch.randn(2, 3, 32, 32)).sum()
    return sum(sizes.values())


@pytest.mark.parametrize("name", ["efficientnet", "vit", "resnet18"])
def test_less_is_kept_for_the_backward_pass(name: str) -> None:
    network = NETWORKS[name]()
    other = copy.deepcopy(network)
    checkpoint_blocks(other, name)
    assert kept(other) < 0.6 * kept(network)


def test_checkpointed_blocks_stay_so_under_torch_compile() -> None:
    """AOTAutograd's own partition of forward and backward, without inductor's code generation, which takes minutes."""

    def twice(checkpointed: bool, compiled: bool) -> tuple[nn.Module, int]:
        torch.manual_seed(0)
        blocks = (torchvision.models.resnet.BasicBlock(4, 4) for _ in range(2))
        model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * 64, 3))
        if checkpointed:
            checkpoint_blocks(model, "two blocks")
        run = torch.compile(model, backend="aot_eager_decomp_partition") if compiled else model
        images = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
        for _ in range(2):
            with keeping(model) as sizes:
                loss = run(images).square().sum()
            loss.backward()
        return model, sum(sizes.values())

    torch._dynamo.reset()
    plain, _ = twice(False, False)
    _, kept_compiled = twice(False, True)
    both, kept_both = twice(True, True)
    for (name, a), b in zip(plain.named_parameters(), both.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)
    for (name, one), other in zip(plain.named_buffers(), both.buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)  # each batch is counted once
    assert kept_both < 0.8 * kept_compiled


def test_layers_that_were_exchanged_later_are_used() -> None:
    network = chain()
    checkpoint_blocks(network, "chain")
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # as build_model does
    calls: list[object] = []
    for layer in converted.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            layer.register_forward_hook(lambda it, *_: calls.append(it))
    converted.eval()(torch.randn(2, 3, 8, 8))
    assert len(calls) == 3


class Overwrites(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2.0)


def test_a_layer_that_overwrites_the_input_of_its_segment_is_refused() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), Overwrites(), nn.Linear(3, 3), nn.Linear(3, 2))
    network.insert(0, nn.Linear(3, 3))
    checkpoint_blocks(network, "own")
    network(torch.randn(2, 3)).sum().backward()  # in the middle of one it is none of ours
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), Overwrites(), *(nn.Linear(3, 3) for _ in range(4)))
    network.insert(0, nn.Identity())
    checkpoint_blocks(network, "own")
    with pytest.raises(ConfigError, match="leave their input as it is.*got Overwrites.*activation_checkpointing=false"):
        network(torch.randn(2, 3))


def test_a_network_without_a_chain_is_refused() -> None:
    said = r"a ResNet, an nn.Sequential of .* layers, or a list of blocks; got .*=googlenet"
    with pytest.raises(ConfigError, match=said):
        checkpoint_blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), "googlenet")
    assert ModelConfig(activation_checkpointing=True).activation_checkpointing
