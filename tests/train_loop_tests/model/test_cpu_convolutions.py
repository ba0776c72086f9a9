"""Convolutions in another way than torch's, against torch's own."""

import copy
import io
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from bigbatch.train_loop.model.cpu_convolutions import (
    SmallMapConv2d,
    StridedPixelConv2d,
    avoid_strided_pixels,
    multiply_small_maps,
)


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


OF_TORCH = """
import torch
torch.set_num_threads(1)
layer = torch.nn.Conv2d(3, 16, 1, 2).to(memory_format=torch.channels_last)
for number in range(60):
    images = torch.randn(16, 3, 32, 32).contiguous(memory_format=torch.channels_last).requires_grad_(number % 2 == 0)
    layer(images).sum().backward()
    other = [torch.randn(n) for n in range(1, 2000, 37)]
"""


@pytest.mark.exhaustive
def test_torchs_own_strided_pixel_convolution_damages_the_memory():
    """Once this fails, torch computes them: ``StridedPixelConv2d`` can go when the lowest torch does too."""
    as_avx2 = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}  # what oneDNN does with AVX-512 is sound
    done = subprocess.run([sys.executable, "-c", OF_TORCH], capture_output=True, timeout=240, env=as_avx2)
    assert done.returncode != 0


@pytest.mark.parametrize("padding", [0, "valid"])
@pytest.mark.parametrize(("stride", "size"), [(2, 32), ((1, 3), 31)])
@pytest.mark.parametrize("channels", [2, 7])
def test_a_strided_pixel_convolution_trains_in_memory_order(channels, stride, size, padding):
    """torch 2.14's own ends the process, of these on maps of 32 × 32."""
    layer = nn.Conv2d(channels, 5, 1, stride, padding)
    avoid_strided_pixels(layer)
    assert type(layer) is StridedPixelConv2d
    layer.to(memory_format=torch.channels_last)
    weight = layer.weight.detach().double()[:, :, 0, 0]
    down, right = layer.stride
    for number in range(20):
        images = torch.randn(16, channels, size, size).contiguous(memory_format=torch.channels_last)
        images.requires_grad_(number % 2 == 0)
        read = images.detach().double()[:, :, ::down, ::right]
        output, reference = layer(images), torch.einsum("oc,nchw->nohw", weight, read)
        reference += layer.bias.detach().double().view(-1, 1, 1)
        torch.testing.assert_close(output.double(), reference, rtol=1e-5, atol=1e-5)
        layer.zero_grad()
        output.backward(given := torch.randn(output.shape))
        summed = torch.einsum("nohw,nchw->oc", given.double(), read)
        torch.testing.assert_close(layer.weight.grad.double()[:, :, 0, 0], summed, rtol=1e-4, atol=1e-3)
        if images.grad is not None:
            expected = torch.zeros(images.shape, dtype=torch.float64)
            expected[:, :, ::down, ::right] = torch.einsum("oc,nohw->nchw", weight, given.double())
            torch.testing.assert_close(images.grad.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("exchange", "others"),
    [
        (multiply_small_maps, [
            nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 3, padding=2, dilation=2), nn.Conv2d(4, 4, 1),
            nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1),
        ]),
        (avoid_strided_pixels, [
            nn.Conv2d(8, 4, 1, 2), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1, 2, padding=1), nn.Conv2d(3, 4, 3, 2),
            nn.Conv2d(4, 4, 1, 2, groups=4),
        ]),
    ],
)  # fmt: skip
def test_convolutions_that_torch_computes_well_stay(exchange, others):
    layers = nn.ModuleList(others)
    exchange(layers)
    assert all(type(layer) is nn.Conv2d for layer in layers)
