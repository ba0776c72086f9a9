"""Search over a Hugging Face Trainer: a small BERT learns to count in generated text. Nothing is downloaded.

    pip install transformers accelerate
    bigbatch tune --trainable examples/huggingface_trainable.py --space examples/huggingface_trainable.py \
        --objective accuracy:max --trials 4 --max-epochs 4
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

LENGTH, WORDS, CLASSES = 16, 32, 4
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "max_position_embeddings": LENGTH}
EACH_EPOCH = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}


def space(trial, workload):
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "layers": trial.suggest_int("layers", 1, 2),
        "batch": trial.suggest_categorical("batch", [32, 128]),
    }


def sentences(count, seed):
    """Each sentence has word 1 zero to three times; this number is its class."""
    draws = torch.Generator().manual_seed(seed)
    words = torch.randint(2, WORDS, (count, LENGTH), generator=draws)
    classes = torch.randint(CLASSES, (count,), generator=draws)
    words[torch.arange(LENGTH) < classes[:, None]] = 1
    return [{"input_ids": one, "labels": label} for one, label in zip(words, classes, strict=True)]


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


class Reporter(TrainerCallback):
    """Hands each epoch and the Trainer's own checkpoint to BigBatch. ``report`` raises when the trial is to stop."""

    def __init__(self, report):
        self.report = report

    def on_save(self, args, state, control, **kwargs):
        found = {name: value for entry in state.log_history for name, value in entry.items()}
        folder = f"{args.output_dir}/checkpoint-{state.global_step}"
        self.report(round(state.epoch), found["eval_accuracy"], checkpoint=folder, train_loss=found["loss"])


def train(config, report, resume):
    torch.manual_seed(config["seed"])
    sizes = BertConfig(vocab_size=WORDS, num_hidden_layers=config["layers"], num_labels=CLASSES, **SIZES)
    how = {"learning_rate": config["lr"], "per_device_train_batch_size": config["batch"], "seed": config["seed"]}
    data = {"train_dataset": sentences(2048, seed=1), "eval_dataset": sentences(512, seed=2)}
    with tempfile.TemporaryDirectory() as folder:
        how |= {"num_train_epochs": config["epochs"], "report_to": [], "disable_tqdm": True, **EACH_EPOCH}
        trainer = Trainer(BertForSequenceClassification(sizes), TrainingArguments(folder, **how), **data,
                          compute_metrics=accuracy, callbacks=[Reporter(report)])  # fmt: skip
        trainer.train(resume_from_checkpoint=resume and str(resume))
