"""Convolutions in another way than torch's, against torch's own."""

import copy
import io

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from bigbatch.train_loop.model.cpu_convolutions import SmallMapConv2d, multiply_small_maps


@pytest.mark.parametrize("stride", [1, 2, (1, 2)])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 2), (2, 1), (3, 2)])
def test_values_and_gradients_are_those_of_a_convolution(size, stride):
    generator = torch.Generator().manual_seed(0)
    theirs = nn.Conv2d(5, 7, 3, stride, 1, bias=False).double()
    ours = copy.deepcopy(theirs)
    multiply_small_maps(ours)
    assert type(ours) is SmallMapConv2d
    images = torch.randn(4, 5, *size, generator=generator, dtype=torch.float64)
    found = []
    for layer in (theirs, ours):
        given = images.clone().requires_grad_()
        output = layer(given)
        output.backward(torch.arange(output.numel(), dtype=torch.float64).view(output.shape))
        found.append((output, given.grad, layer.weight.grad))
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_a_resnet_keeps_its_parameters_and_what_it_computes():
    theirs = resnet18(num_classes=3).double()
    ours = copy.deepcopy(theirs)
    multiply_small_maps(ours)
    images = torch.randn(6, 3, 40, 40, dtype=torch.float64)  # its last maps are 3×3, then 2×2
    assert list(ours.state_dict()) == list(theirs.state_dict())
    expected, value = theirs(images), ours(images)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    expected.square().sum().backward()
    value.square().sum().backward()
    for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-7, atol=1e-7, msg=name)


def test_it_is_saved_and_computes_in_bfloat16_and_in_memory_order():
    layer = nn.Conv2d(8, 4, 3, padding=1, bias=False)
    multiply_small_maps(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    again = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    images = torch.randn(2, 8, 2, 2).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        output = again(images)
    assert output.dtype == torch.bfloat16 and output.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(output.float(), layer(images), rtol=0.05, atol=0.05)


def test_convolutions_that_torch_computes_well_stay():
    others = [
        nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 3, padding=2, dilation=2), nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1),
    ]  # fmt: skip
    layers = nn.ModuleList(others)
    multiply_small_maps(layers)
    assert all(type(layer) is nn.Conv2d for layer in layers)
