"""Search over a Lightning module: early stopping and resuming work, from Lightning's own checkpoints.

    bigbatch tune --trainable examples/lightning_trainable.py --space examples/lightning_trainable.py \
        --objective accuracy:max --trials 6 --max-epochs 8
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def space(trial, workload):
    return {
        "lr": trial.suggest_float("lr", 1e-3, 1.0, log=True),
        "width": trial.suggest_categorical("width", [16, 64, 256]),
        "batch": trial.suggest_categorical("batch", [64, 256]),
    }


class Digits(lightning.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


class Reporter(lightning.Callback):
    """Hands each epoch and Lightning's checkpoint to BigBatch. ``report`` raises when the trial is to stop."""

    def __init__(self, report):
        self.report = report

    def on_train_epoch_end(self, trainer, module):
        trainer.save_checkpoint(self.report.checkpoint_folder / "last.ckpt")
        found, epoch = trainer.callback_metrics, trainer.current_epoch + 1
        self.report(epoch=epoch, value=found["accuracy"], train_loss=found["loss_epoch"])


def train(config, report, resume):
    lightning.seed_everything(config["seed"])
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 16, labels)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=config["epochs"], devices=1, callbacks=[Reporter(report)], **quiet)
    first, rest = Subset(data, range(1400)), Subset(data, range(1400, 1797))
    loaders = DataLoader(first, config["batch"], shuffle=True), DataLoader(rest, 397)
    trainer.fit(Digits(config["width"], config["lr"]), *loaders, ckpt_path=resume and resume / "last.ckpt")
