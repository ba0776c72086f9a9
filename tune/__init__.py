"""The search: its plan, trials, study and displays. Importing this package loads neither torch nor Ray."""

if __name__ == "tune":  # `python -m tune.run` in a clone's root
    import runpy
    from pathlib import Path

    root = Path(__file__).resolve().parents[1]
    runpy.run_path(str(root / "cluster" / "host" / "root.py"))["alias_package"]("tune")
else:
    from bigbatch.cluster.host import hidden_libraries

    hidden_libraries.refuse_hidden_libraries()
