"""Processor use of this machine; NVML is a fake, there is no GPU to test with."""

import math
from types import SimpleNamespace

import psutil
import pytest

from serving_adapter.resources import Gpus, _limit_bytes, _quota_cores, cpu_times, memory_bytes


class FakeNVMLError(Exception):
    pass


def fake_nvml(percentages, broken=()):
    """Named as NVML's functions are; a card in `broken` fails its reading."""

    def rates(handle):
        if handle in broken:
            raise FakeNVMLError
        return SimpleNamespace(gpu=percentages[handle], memory=0)

    ended = []
    return SimpleNamespace(
        NVMLError=FakeNVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: ended.append(True),
        nvmlDeviceGetCount=lambda: len(percentages),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUtilizationRates=rates,
        ended=ended,
    )


def test_cpu_times_grow_and_busy_is_part_of_them():
    first = cpu_times()
    sum(i * i for i in range(200_000))
    second = cpu_times()
    assert 0 < first.busy_s <= second.busy_s
    assert first.available_s <= second.available_s
    assert second.busy_s < second.available_s


def test_busy_time_does_not_fall_by_rounding_while_the_machine_idles(monkeypatch):
    now = psutil.cpu_times()
    readings = [now._replace(idle=now.idle + hundredths / 100) for hundredths in range(500)]
    monkeypatch.setattr(psutil, "cpu_times", iter(readings).__next__)
    assert len({cpu_times().busy_s for _ in readings}) == 1


def test_the_mean_over_all_gpus():
    assert Gpus(fake_nvml([20, 80])).utilisation() == pytest.approx(0.5)


def test_a_gpu_that_fails_its_reading_is_left_out():
    assert Gpus(fake_nvml([20, 80], broken=[0])).utilisation() == pytest.approx(0.8)
    assert Gpus(fake_nvml([20], broken=[0])).utilisation() is None


def test_without_gpus_or_driver_there_is_nothing_to_read():
    nvml = fake_nvml([])
    assert Gpus(nvml).utilisation() is None

    def no_driver():
        raise FakeNVMLError

    nvml.nvmlInit = no_driver
    gpus = Gpus(nvml)
    assert gpus.utilisation() is None
    gpus.close()
    assert nvml.ended == []


def test_close_ends_nvml_once():
    nvml = fake_nvml([10])
    gpus = Gpus(nvml)
    gpus.close()
    gpus.close()
    assert nvml.ended == [True]


@pytest.mark.parametrize(
    ("own", "around", "cores"), [("max 100000", "", 3.5), ("150000 100000", "max 100000", 1.5), ("", "", 3.5)]
)
def test_the_least_quota_of_the_control_groups_around_a_process_counts(tmp_path, own, around, cores):
    (tmp_path / "slice" / "pod").mkdir(parents=True)
    (tmp_path / "cpu.max").write_text("350000 100000\n")
    (tmp_path / "slice" / "cpu.max").write_text(around)
    (tmp_path / "slice" / "pod" / "cpu.max").write_text(own)
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/slice/pod\n")
    assert _quota_cores(tmp_path, tmp_path / "cgroup") == cores
    assert _quota_cores(tmp_path, tmp_path / "none") == math.inf


def test_memory_is_what_the_tightest_container_around_leaves(tmp_path):
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "memory.max").write_text("4096\n")
    (tmp_path / "outer" / "inner" / "memory.max").write_text("max\n")
    assert _limit_bytes(tmp_path, tmp_path / "cgroup") == 4096
    assert _limit_bytes(tmp_path, tmp_path / "none") == math.inf
    assert 0 < memory_bytes() <= psutil.virtual_memory().total


def test_the_limits_of_a_container_of_the_older_kind_count(tmp_path):
    for controller in ("cpu,cpuacct", "memory"):
        (tmp_path / controller / "docker").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct" / "docker" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu,cpuacct" / "docker" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4000000\n")
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/docker/inner\n2:cpu,cpuacct:/docker\n0::/\n")
    assert _quota_cores(tmp_path, own) == 0.5
    assert _limit_bytes(tmp_path, own) == 4_000_000
