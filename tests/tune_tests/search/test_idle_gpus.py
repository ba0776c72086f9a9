"""When a search says that its GPUs hardly compute."""

from __future__ import annotations

from bigbatch.train_loop.host.device_use import SAY_AGAIN_S
from bigbatch.tune.runs.observer import TrialView
from bigbatch.tune.search.gpu_use import IdleGpus


class Search:
    """Epochs of 200 s, of which 40 s are validation; what the observer said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self.observer = IdleGpus(self.said.append, lambda: self.now)

    def epochs(self, trial: int, *busy: float | None) -> list[str]:
        view = TrialView(number=trial, params={}, config=None)
        for part in busy:
            self.observer.epoch_ended(view, {"train_s": 160.0, "val_s": 40.0, "gpu_utilization": part})
        said, self.said[:] = list(self.said), []
        return said


def test_ten_minutes_of_an_idle_gpu_are_said_with_the_trial() -> None:
    search = Search()
    assert search.epochs(7, 0.1, 0.1) == []
    (line,) = search.epochs(7, 0.04)
    assert "trial 7" in line and "8 % of 10 minutes" in line and "--profile-steps 50" in line


def test_busy_gpus_and_gpus_that_nobody_measures_are_not_mentioned() -> None:
    search = Search()
    assert search.epochs(1, *[0.9] * 10) == []
    assert search.epochs(2, *[None] * 10) == []
    assert search.epochs(3, *[0.0, 0.0, 0.7] * 4) == [], "23 % of the time"


def test_it_is_said_at_most_once_an_hour() -> None:
    search = Search()
    assert len(search.epochs(1, *[0.0] * 30)) == 1
    assert search.epochs(2, *[0.0] * 30) == []
    search.now += SAY_AGAIN_S
    assert len(search.epochs(2, *[0.0] * 3)) == 1


def test_epochs_of_several_trials_are_not_added_up() -> None:
    search = Search()
    assert [line for trial in range(5) for line in search.epochs(trial, 0.0, 0.0)] == []
