"""Training functions of a user's, for tests that need no learning."""

CURVES = '''"""Learning curves without any learning. Each epoch leaves a checkpoint."""

def space(trial, workload):
    return {"lr": trial.suggest_float("lr", 0.1, 1.0)}

def train(config, report, resume):
    done = int((resume / "epoch").read_text()) if resume else 0
    for epoch in range(done + 1, config["epochs"] + 1):
        (report.checkpoint_folder / "epoch").write_text(str(epoch))
        report(epoch=epoch, value=config["lr"] * epoch / config["epochs"])

def forgets(config, report, resume):
    """It leaves no checkpoint."""
    assert resume is None
    for epoch in range(1, config["epochs"] + 1):
        report(epoch=epoch, value=config["lr"] * epoch / config["epochs"])
'''
