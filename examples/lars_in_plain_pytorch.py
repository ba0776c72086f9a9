"""Train a small network on handwritten digits at batch 512 with LARS, in plain PyTorch.

    python examples/lars_in_plain_pytorch.py

Takes a few seconds on a laptop. It uses only BigBatch's optimizer: no Ray, no study, no configuration.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from bigbatch.train_loop.optim import LARS, parameter_groups

EPOCHS, BATCH, PEAK_LR, WARMUP_STEPS = 40, 512, 12.0, 20

torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16 - 0.3
labels = torch.tensor(labels)
order = torch.randperm(len(images))
train, val = order[:1437], order[1437:]

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
)
# Weight decay and the trust ratio are for weight matrices only, not for BatchNorm parameters and biases.
optimizer = LARS(parameter_groups(model, weight_decay=1e-4), lr=PEAK_LR, momentum=0.9, trust_coefficient=0.001)
steps = EPOCHS * -(-len(train) // BATCH)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) / WARMUP_STEPS, (1 - step / steps) ** 2)
)

for epoch in range(EPOCHS):
    model.train()
    for batch in train[torch.randperm(len(train))].split(BATCH):
        optimizer.zero_grad()
        loss = cross_entropy(model(images[batch]), labels[batch], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
    if epoch % 10 == 9:
        model.eval()
        with torch.no_grad():
            right = (model(images[val]).argmax(1) == labels[val]).float().mean()
        print(f"epoch {epoch + 1}: training loss {loss:.3f}, validation top-1 {right:.3f}")
