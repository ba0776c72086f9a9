"""The built-in spaces: batches, priors against published settings, validity of what is sampled."""

import random
from dataclasses import replace

import optuna
import pytest

from bigbatch.search_spaces import BUILT_IN, Space, Workload, check_space
from bigbatch.search_spaces.distribution import Distribution
from bigbatch.search_spaces.priors import global_batch_sizes, peak_lr_centre, trust_coefficient
from bigbatch.search_spaces.trial import StandInTrial
from bigbatch.train_loop.config import TrainConfig

DIGITS = Workload("digits", train_size=1437, num_classes=10, image_size=32, model="resnet18", epochs=12)
CIFAR = Workload("cifar", train_size=50_000, num_classes=10, image_size=32, model="resnet18", epochs=30)
IMAGENET = Workload(
    "imagenet", train_size=1_281_167, num_classes=1000, image_size=224, model="resnet50", epochs=90, accelerator="cuda"
)
WORKLOADS = pytest.mark.parametrize("workload", [DIGITS, CIFAR, IMAGENET], ids=lambda w: w.data)
SPACES = pytest.mark.parametrize("space", BUILT_IN.values(), ids=lambda s: s.name)


def on_workers(workload: Workload, workers: int, max_micro_size: int = 256) -> Workload:
    return replace(workload, workers=workers, max_micro_size=max_micro_size)


def test_large_batches_are_searched_up_to_what_the_data_allow() -> None:
    assert global_batch_sizes(DIGITS) == (128, 256, 512, 1024)
    assert global_batch_sizes(IMAGENET) == (2048, 4096, 8192, 16384, 32768)
    assert global_batch_sizes(CIFAR) == (512, 1024, 2048, 4096)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 7, 8, 12, 24])
@pytest.mark.parametrize("max_micro_size", [1, 48, 200, 256])
def test_batches_divide_into_micro_batches_that_are_not_small(workers: int, max_micro_size: int) -> None:
    for workload in (DIGITS, IMAGENET):
        for size in global_batch_sizes(on_workers(workload, workers, max_micro_size)):
            config = on_workers(workload, workers, max_micro_size).config({"batch.global_size": size})
            split = config.batch.split(workers)
            assert split.global_size == size
            share = size // workers
            assert split.micro_size >= min(share, max_micro_size // 2), (size, split)


# MLPerf Training reference convergence points for ResNet-50 (mlcommons/logging, rcps_resnet.json):
# batch, peak lr, momentum, steps.
MLPERF_LARS = [
    (1632, 7.4, 0.9, 27_476),
    (3264, 10.5, 0.9, 13_798),
    (4096, 10.0, 0.9, 12_472),
    (8192, 17.0, 0.9, 6_549),
    (13056, 12.8, 0.9, 4_465),
    (32768, 21.2, 0.94, 2_189),
    (65536, 24.7, 0.952, 1_652),
]
# NUS PyTorch LARS, 90 epochs, batch and peak lr (76.75 to 77.38 % top-1).
NUS_LARS = [(512, 4.0), (1024, 5.7), (4096, 11.3), (8192, 16.0), (16384, 22.6), (32768, 32.0)]


@pytest.mark.parametrize(("batch", "lr", "momentum", "steps"), MLPERF_LARS)
def test_the_lars_prior_meets_mlperf(batch: int, lr: float, momentum: float, steps: int) -> None:
    assert 0.25 < lr / peak_lr_centre("lars", batch, steps, momentum) < 4
    assert 0.5 < lr / peak_lr_centre("lars", batch, steps) < 2
    assert trust_coefficient(steps) == 0.001


@pytest.mark.parametrize(
    ("optimizer", "batch", "steps", "lr", "within"),
    [
        pytest.param("sgd", 256, 450_000, 0.1, 1.0001, id="Goyal 2017 baseline"),
        pytest.param("sgd", 8192, 14_000, 3.2, 1.0001, id="Goyal 2017"),
        pytest.param("sgd", 1024, 750_000, 0.5, 1.5, id="torchvision V2"),
        pytest.param("sgd", 4096, 5_000, 1.7, 1.5, id="FFCV rn50"),
        pytest.param("sgd", 32768, 2_496, 7.05, 1.5, id="Nado 2021"),
        pytest.param("lamb", 2048, 187_000, 5e-3, 1.0001, id="RSB A2"),
        pytest.param("lamb", 2048, 62_500, 8e-3, 2, id="RSB A3"),
        pytest.param("lamb", 32768, 3_519, 0.04, 2.0001, id="LAMB at 32k"),
        *(pytest.param("lars", b, 90 * (1_281_167 // b), lr, 1.9999, id=f"NUS LARS {b}") for b, lr in NUS_LARS),
    ],
)
def test_priors_meet_published_rates(optimizer: str, batch: int, steps: int, lr: float, within: float) -> None:
    assert 1 / within <= lr / peak_lr_centre(optimizer, batch, steps) <= within


@SPACES
@pytest.mark.parametrize("workers", [1, 3])
def test_every_sampled_configuration_is_valid(space: Space, workers: int) -> None:
    seen: dict[str, Distribution] = {}
    for workload in (DIGITS, IMAGENET):
        here = on_workers(workload, workers)
        seen.clear()
        rng = random.Random(workers)
        for _ in range(150):
            trial = StandInTrial(rng)
            config = space(trial, here)
            assert config.batch.split(workers).micro_size <= here.max_micro_size
            assert config.batch.global_size <= here.train_size
            assert (config.epochs, config.data.name, config.model.name) == (here.epochs, here.data, here.model)
            for name, distribution in trial.distributions.items():
                assert seen.setdefault(name, distribution) == distribution, "one static range a name"
        assert TrainConfig.from_json(config.to_json()) == config


@SPACES
@WORKLOADS
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_real_optuna_study_runs_on_it(space: Space, workload: Workload) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, multivariate=True, group=True))
    points = space.initial_points(workload)
    for point in points:
        study.enqueue_trial(point)
    ranges = check_space(space, workload)
    configs = []
    for _ in range(30):
        trial = study.ask()
        config = space(trial, workload)
        configs.append(config)
        assert set(trial.params) <= set(ranges)
        study.tell(trial, config.optimizer.peak_lr)
    for point, told in zip(points, study.trials, strict=False):
        assert told.params.items() >= point.items()
    assert len({config.optimizer.peak_lr for config in configs}) > 20


def test_conditional_parameters_appear_with_their_optimizer_only() -> None:
    ranges = check_space(BUILT_IN["large_batch"], DIGITS)
    assert ranges["optimizer"].choices == ("lars", "lamb", "sgd")
    assert ranges["lr_multiplier"].conditions == {}
    assert ranges["one_minus_momentum"].conditions == {"optimizer": ("lars", "sgd")}
    assert ranges["decoupled_weight_decay"].conditions == {"optimizer": ("lamb",)}
    assert ranges["one_minus_momentum"].describe() == "0.03 … 0.3 (log), with optimizer lars, sgd"
    derived = [name for name, r in ranges.items() if r.kind == "derived"]
    assert derived == ["peak_lr[lars]", "peak_lr[sgd]", "peak_lr[lamb]"]


def test_initial_points_are_the_centre_of_each_optimizers_prior() -> None:
    space = BUILT_IN["large_batch"]
    configs = [space(StandInTrial(None, fixed=point), DIGITS) for point in space.initial_points(DIGITS)]
    assert [config.optimizer.name for config in configs] == ["lars", "sgd", "lamb"]
    assert [config.batch.global_size for config in configs] == [256, 128, 1024]
    for config in configs:
        name, batch = config.optimizer.name, config.batch.global_size
        momentum = config.optimizer.momentum if name in ("lars", "sgd") else 0.9
        centre = peak_lr_centre(name, batch, 12 * (1437 // batch), momentum)
        assert config.optimizer.peak_lr == pytest.approx(centre)


@pytest.mark.parametrize(("batch", "momentum"), [(1024, 0.75), (256, 0.9), (16, 0.9)])
def test_short_runs_begin_with_a_momentum_that_fits_into_them_three_times(batch: int, momentum: float) -> None:
    steps = 12 * (1437 // batch)
    assert 3 / (1 - momentum) <= steps
    for point in BUILT_IN["large_batch"].initial_points(DIGITS, {"global_size": batch}):
        trial = StandInTrial(None, fixed=point)
        optimizer = BUILT_IN["large_batch"](trial, DIGITS, {"global_size": batch}).optimizer
        assert (optimizer.beta1 if optimizer.name == "lamb" else optimizer.momentum) == pytest.approx(momentum)
