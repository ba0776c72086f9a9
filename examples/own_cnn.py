"""A network and a loss of your own: residual blocks of any width, and the focal loss.

    bigbatch tune --model examples/own_cnn.py:net --loss examples/own_cnn.py:focal --batch 128 --trials 4 --max-epochs 6
    bigbatch train --model examples/own_cnn.py:net --loss examples/own_cnn.py:focal --set model.options.width=32

Each takes less than two minutes on two cores, on the embedded digits. `docs/bring-your-own.md` says what they may do.
"""

import torch
import torch.nn.functional as F
from torch import nn

from bigbatch.train_loop.data.info import DataInfo


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.around = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Half the height and width: [N, inputs, H, W] to [N, outputs, H/2, W/2]."""
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.around(x))


def net(workload: DataInfo, width: int = 16, blocks: int = 3) -> nn.Module:
    """Logits [N, num_classes] of images [N, channels, H, W]."""
    widths = [workload.channels, *(width * 2**number for number in range(blocks))]
    return nn.Sequential(
        *(Block(inputs, outputs) for inputs, outputs in zip(widths, widths[1:], strict=False)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], workload.num_classes),
    )


def focal(outputs: torch.Tensor, targets: torch.Tensor, gamma: float = 2.0) -> torch.Tensor:
    """Focal loss (Lin et al. 2017, arXiv 1708.02002), the mean over the batch."""
    entropy = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-entropy).exp()) ** gamma * entropy).mean()
