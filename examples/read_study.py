"""Read what a study has found with pandas: its best trials, and how the best one learned.

    python examples/read_study.py runs/STUDY

The files may be read while the search runs. `docs/study-folder.md` explains all columns.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds

if len(sys.argv) != 2:
    sys.exit("Write: python examples/read_study.py runs/STUDY")
folder = Path(sys.argv[1])
plan = json.loads((folder / "study.json").read_text())
trials = pd.read_parquet(folder / "trials.parquet")

counts = trials["state"].value_counts()
print(f"{plan['name']}: " + ", ".join(f"{count} {state.lower()}" for state, count in counts.items()))
print(f"{trials['gpu_hours'].sum():.3f} GPU hours (of CPU workers where there is no GPU)\n")

# A trial that was stopped early has no value: its last epoch is not comparable with a full run's.
best = trials.dropna(subset="value").nlargest(5, "value")
columns = {
    "trial": "trial",
    "value": "top-1",
    "config.optimizer.name": "optimizer",
    "config.optimizer.peak_lr": "peak lr",
    "config.batch.global_size": "batch",
    "epochs": "epochs",
}
print(best[list(columns)].rename(columns=columns).to_string(index=False, float_format="{:.4g}".format))
if best.empty:
    sys.exit("no trial has run to its end yet")

# For a large study pyarrow reads only the rows and columns that are asked for.
epochs = ds.dataset(folder / "epochs.parquet").to_table(
    columns=["epoch", "train_loss", "val_top1", "images_per_s"],
    filter=ds.field("trial") == int(best["trial"].iloc[0]),
)
print(f"\ntrial {best['trial'].iloc[0]}:")
print(epochs.to_pandas().to_string(index=False, float_format="{:.4g}".format))
