"""Energy of processors and GPUs: counters that wrap, that may not be read, and that are not there."""

import importlib
import math
import sys
from pathlib import Path

import pytest

from bigbatch.train_loop.host.device_use import (
    IDLE_WINDOW_S,
    SAMPLE_S,
    SAY_AGAIN_S,
    GpuCounters,
    IdleWatch,
    ProcessorEnergy,
    UseMeter,
    open_gpu_counters,
    open_processor_energy,
)  # fmt: skip
from helpers.counters import MOST_UJ, Nvml, Powercap


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    """Two processors with cores and memory, the whole machine, and the first processor once more."""
    tree = Powercap(tmp_path / "powercap")
    (tree.root / "intel-rapl").mkdir(parents=True)
    (tree.root / "intel-rapl" / "enabled").write_text("1\n")
    tree.counter("intel-rapl:0", "package-0", 1_000_000)
    tree.counter("intel-rapl:0:0", "core", 500_000)
    tree.counter("intel-rapl:0:1", "dram", 100_000)
    tree.counter("intel-rapl:1", "package-1", 7_000_000)
    tree.counter("intel-rapl:2", "psys", 9_000_000)
    tree.counter("intel-rapl-mmio:0", "package-0", 1_000_000)
    return tree


def test_processors_and_memory_are_each_counted_once(powercap: Powercap) -> None:
    energy = ProcessorEnergy(powercap.root)
    assert energy.joules() == 0.0
    powercap.now("intel-rapl:0", 3_000_000)  # 2 J
    powercap.now("intel-rapl:1", 7_500_000)  # 0.5 J
    powercap.now("intel-rapl:0:1", 350_000)  # 0.25 J of memory
    powercap.now("intel-rapl:0:0", 99_000_000)  # of the cores: a part of the processor
    powercap.now("intel-rapl:2", 99_000_000)  # of the machine: contains the processors
    powercap.now("intel-rapl-mmio:0", 3_000_000)  # the same processor, read in another way
    assert energy.joules() == 2.75
    assert energy.joules() == 2.75


def test_a_counter_that_begins_again_loses_nothing(powercap: Powercap) -> None:
    powercap.now("intel-rapl:0", MOST_UJ - 2_000_000)
    energy = ProcessorEnergy(powercap.root)
    powercap.now("intel-rapl:0", 3_000_000)
    assert energy.joules() == pytest.approx(5.0)


def test_what_cannot_be_read_is_not_measured(powercap: Powercap, tmp_path: Path) -> None:
    """Root may read everything, so the counter is a folder here, not a file without permission."""
    assert open_processor_energy(tmp_path / "absent") is None
    assert open_processor_energy(powercap.root) is not None
    energy = ProcessorEnergy(powercap.root)
    counter = powercap.root / "intel-rapl:1" / "energy_uj"
    counter.unlink()
    counter.mkdir()
    assert math.isnan(energy.joules()), "one processor's energy is not that of both"
    assert open_processor_energy(powercap.root) is None
    with pytest.raises(OSError, match="energy_uj"):
        ProcessorEnergy(powercap.root)


def test_a_gpu_that_tells_nothing_is_not_measured() -> None:
    nvml = Nvml(has_counter=False)
    nvml.nvmlDeviceGetPowerUsage = nvml.nvmlDeviceGetUtilizationRates = nvml.nvmlDeviceGetTotalEnergyConsumption  # type: ignore[assignment, method-assign]
    gpu = GpuCounters(nvml, None)
    assert math.isnan(gpu.joules()) and math.isnan(gpu.utilization()) and math.isnan(gpu.power_w())


def test_no_library_and_no_driver_mean_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu_counters("GPU-1") is None
    monkeypatch.undo()
    if importlib.util.find_spec("pynvml"):
        assert open_gpu_counters("00000000-0000-0000-0000-000000000000") is None


def test_a_meter_tells_what_was_used_since_it_was_asked(powercap: Powercap) -> None:
    nvml = Nvml()
    meter = UseMeter(GpuCounters(nvml, None), ProcessorEnergy(powercap.root))
    meter.resume(10.0, 20.0)
    nvml.mj += 4000
    powercap.now("intel-rapl:0", 3_000_000)
    assert meter.used() == meter.used(), "asking changes nothing"
    use = meter.take()
    assert (use.gpu_energy_j, use.cpu_energy_j, use.gpu_utilization) == (14.0, 22.0, pytest.approx(0.9))
    assert use.gpu_peak_power_w == 300.0
    nvml.mj, nvml.busy, nvml.power_w = nvml.mj + 500, 10, 550.0
    meter.sample()
    nvml.power_w = 80.0
    use = meter.take()
    assert (use.gpu_energy_j, use.cpu_energy_j, use.gpu_utilization) == (0.5, 0.0, 0.1)
    assert use.gpu_peak_power_w == 550.0 and meter.take().gpu_peak_power_w == 80.0, "since it was asked"


def test_one_worker_counts_the_processors_of_its_machine(powercap: Powercap) -> None:
    first = UseMeter(None, ProcessorEnergy(powercap.root))
    second = UseMeter(None, None, counts_processors=False)
    powercap.now("intel-rapl:0", 3_000_000)
    assert first.take().cpu_energy_j + second.take().cpu_energy_j == 2.0
    assert math.isnan(first.take().gpu_energy_j)
    assert math.isnan(UseMeter(None, None).take().cpu_energy_j), "no counter: not measured, not 0"


def test_trials_that_share_a_gpu_count_its_energy_once() -> None:
    nvml = Nvml()
    meters = [UseMeter(GpuCounters(nvml, None), gpu_part=1 / 3, counts_processors=False) for _ in range(3)]
    nvml.mj += 4500
    used = [meter.take() for meter in meters]
    assert sum(use.gpu_energy_j for use in used) == pytest.approx(4.5)
    assert {use.gpu_utilization for use in used} == {0.9}, "of the whole GPU"


def test_a_meter_without_counters_starts_no_thread() -> None:
    with UseMeter() as meter:
        assert meter._thread is None
    with UseMeter(GpuCounters(Nvml(), None)) as meter:
        assert meter._thread is not None and meter._thread.is_alive()
    assert not meter._thread.is_alive()


def test_a_gpu_that_idles_for_ten_minutes_is_mentioned_once_an_hour() -> None:
    now, said = [0.0], []
    watch = IdleWatch("worker 3 on n1", lambda: now[0])

    def pass_time(seconds: float, busy: float) -> None:
        for _ in range(int(seconds / SAMPLE_S)):
            said.append((now[0], watch.add(busy)))
            now[0] += SAMPLE_S

    def told() -> list[tuple[float, str]]:
        found = [(at, text) for at, text in said if text]
        said.clear()
        return found

    pass_time(3600, 0.9)
    assert told() == []
    pass_time(IDLE_WINDOW_S, 0.05)
    ((at, text),) = told()
    # (t · 0.05 + (600 − t) · 0.9) / 600 is below 0.2 from t = 494 s on.
    assert at == pytest.approx(3600 + 494, abs=2 * SAMPLE_S)
    assert "worker 3 on n1" in text and "--profile-steps" in text and "last 10 minutes" in text
    pass_time(SAY_AGAIN_S, 0.05)
    assert [at for at, _ in told()] == pytest.approx([at + SAY_AGAIN_S], abs=SAMPLE_S)
    assert watch.add(math.nan) == ""


def test_the_first_minutes_are_not_judged() -> None:
    now = [0.0]
    watch = IdleWatch("worker 0 on n1", lambda: now[0])
    for _ in range(int(IDLE_WINDOW_S / SAMPLE_S)):
        assert watch.add(0.0) == ""
        now[0] += SAMPLE_S
    assert "0 %" in watch.add(0.0)
