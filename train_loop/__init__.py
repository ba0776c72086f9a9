"""One training run: configuration, data, models, optimizers, loop. Importing it loads neither torch nor Ray."""

if __name__ == "train_loop":  # `python -m train_loop.run` in a clone's root
    import runpy
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    runpy.run_path(str(root / "cluster" / "host" / "root.py"))["alias_package"]("train_loop")
