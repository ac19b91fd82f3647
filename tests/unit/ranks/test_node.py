"""Counters of a node, read from files in the kernel's format and from this machine's kernel."""

import os
import platform
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from ranks.worker import node
from ranks.worker.node import Node, Reading

V1 = "nr_periods 100\nnr_throttled 40\nthrottled_time {}\n"
V2 = "usage_usec 9000000\nuser_usec 8\nsystem_usec 1\nnr_periods 100\nnr_throttled 40\nthrottled_usec {}\nnr_bursts 0\nburst_usec 0\n"


def throttled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str]
) -> float | None:
    enter(tmp_path, monkeypatch, groups, files)
    return Node(["lo"], []).read().throttled_s


def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str]) -> None:
    """Be in the control groups `groups` (/proc/self/cgroup), with these files below /sys/fs/cgroup."""
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "self").write_text(groups)
    monkeypatch.setattr(node, "CGROUPS", root)
    monkeypatch.setattr(node, "OWN_GROUPS", tmp_path / "self")


def test_throttling_is_read_from_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = "5:memory:/elsewhere\n4:cpu,cpuacct:/ringside/node1\n1:name=systemd:/\n0::/\n"
    files = {
        "cpu,cpuacct/ringside/node1/cpu.stat": V1.format(2_500_000_000),
        "cpu,cpuacct/ringside/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        "cpu,cpuacct/ringside/node2/cpu.stat": V1.format(90_000_000_000),
        "cpu,cpuacct/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        "memory/elsewhere/cpu.stat": V1.format(80_000_000_000),
    }
    assert throttled(tmp_path, monkeypatch, groups, files) == pytest.approx(2.5), "of this node alone"


def test_throttling_is_read_from_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "system.slice/slurmstepd.scope/job_7/step_0/cpu.stat": V2.format(1_500_000),
        "system.slice/slurmstepd.scope/job_7/cpu.stat": V2.format(250_000),
        "system.slice/slurmstepd.scope/cpu.stat": V2.format(0).replace("nr_periods 100", "nr_periods 0"),
        "cpu.stat": "usage_usec 1\nuser_usec 1\nsystem_usec 0\n",
        "user.slice/cpu.stat": V2.format(99_000_000),
    }
    groups = "0::/system.slice/slurmstepd.scope/job_7/step_0\n"
    assert throttled(tmp_path, monkeypatch, groups, files) == pytest.approx(1.75), (
        "of the step and of the job around it"
    )


def test_where_no_quota_is_set_no_throttling_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"user.slice/cpu.stat": V2.format(0).replace("nr_periods 100", "nr_periods 0")}
    assert throttled(tmp_path, monkeypatch, "0::/user.slice\n", files) is None


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "max\n"}, 24 * 2**30),
        (
            "0::/a/b\n",
            {"a/b/memory.max": "max\n", "a/memory.max": "6000000000\n", "c/memory.max": "1\n"},
            6_000_000_000,
        ),
        ("3:memory:/a\n2:cpu:/\n", {"memory/a/memory.limit_in_bytes": "5000000000\n"}, 5_000_000_000),
        ("3:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, 24 * 2**30),
    ],
    ids=["no limit", "of a group above, version 2", "version 1", "version 1, no limit"],
)
def test_memory_is_the_nodes_or_what_its_control_groups_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal:       {24 * 2**20} kB\nMemFree:        1 kB\n")
    monkeypatch.setattr(node, "MEMORY", tmp_path / "meminfo")
    enter(tmp_path, monkeypatch, groups, files)
    assert node.memory_bytes() == expected


def test_the_system_is_told_with_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = f"Linux {os.uname().release}"
    distribution, _, kernel_name = node.system().rpartition(", ")
    assert kernel_name == kernel and distribution == platform.freedesktop_os_release()["PRETTY_NAME"]
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: (_ for _ in ()).throw(OSError))
    assert node.system() == kernel, "a system without that file"


def test_bytes_that_leave_through_an_interface_are_counted() -> None:
    size = 20_000_000
    before = node.sent_bytes(["lo"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname()[1], size))
        sender.start()
        peer, _ = server.accept()
        with peer:
            received = 0
            while part := peer.recv(1 << 20):
                received += len(part)
        sender.join()
    after = node.sent_bytes(["lo"])
    assert received == size and before is not None and after is not None
    assert after - before >= size


def _send(port: int, size: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(bytes(size))


def test_an_interface_that_is_not_there_tells_nothing() -> None:
    assert node.sent_bytes(["lo", "nope0"]) is None


def own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def test_own_busy_loop_is_in_the_cpu_time_of_the_machine() -> None:
    began, own, busy, stolen = time.monotonic(), own_cpu_s(), node.busy_seconds(), node.stolen_seconds()
    while own_cpu_s() - own < 1.0:
        sum(range(100_000))
    used, counted, elapsed = own_cpu_s() - own, node.busy_seconds() - busy, time.monotonic() - began
    tick = 2 / os.sysconf("SC_CLK_TCK")
    assert counted >= 0.9 * used - tick, "the machine's time holds ours"
    assert counted <= elapsed * (os.cpu_count() or 1) + 0.1 * used + tick, (
        "and no more than its processors have"
    )
    assert node.stolen_seconds() >= stolen


def test_processor_time_is_the_control_groups_where_they_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "CGROUPS", tmp_path)
    for name, usec in (("system.slice", 2_000_000), ("user.slice", 3_500_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpu.stat").write_text(f"usage_usec {usec}\nuser_usec 1\nsystem_usec 1\n")
    assert node.busy_seconds() == pytest.approx(5.5), "version 2: all groups at the top"
    (tmp_path / "cpuacct").mkdir()
    (tmp_path / "cpuacct" / "cpuacct.usage").write_text("14000000000\n")
    assert node.busy_seconds() == pytest.approx(14.0), "version 1"


def test_what_one_of_two_readings_does_not_tell_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "sent_bytes", lambda interfaces: 350)
    counters = Node(["lo"], [])
    monkeypatch.setattr(counters, "_throttling", [])
    increase = counters.since(Reading(throttled_s=0.5, sent_bytes=100))
    assert (increase["throttled_s"], increase["sent_bytes"]) == (None, 250)


def test_bytes_of_several_interfaces_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = "0 " * 8
    (tmp_path / "dev").write_text(
        f"Inter-| x\n face |bytes\n ib0: {counts}7 0\n ib0.1:{counts}100\n ib1:{counts}5\n"
    )
    monkeypatch.setattr(node, "NETWORK", tmp_path / "dev")
    assert [node.sent_bytes(names) for names in (["ib0"], ["ib0", "ib1"], ["ib0", "ib2"])] == [7, 12, None]


def test_accelerator_is_named_by_its_driver_or_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "NVIDIA_GPUS", tmp_path / "nvidia")
    monkeypatch.setattr(node, "AMD_GPUS", tmp_path / "amdgpu")
    assert node.accelerator(0) == "cuda"
    for number, model in enumerate(["AMD Instinct MI250X", ""]):
        folder = tmp_path / "amdgpu" / f"0000:{number}1:00.0"
        folder.mkdir(parents=True)
        (folder / "product_name").write_text(f"{model}\n")
    assert [node.accelerator(number) for number in range(3)] == ["AMD Instinct MI250X", "cuda", "cuda"]
    for number, model in enumerate(["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"]):
        folder = tmp_path / "nvidia" / f"0000:{number}1:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 154\n")
    names = [node.accelerator(number) for number in range(3)]
    assert names == ["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "cuda"]


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC  7R13 Processor\n", "AMD EPYC 7R13 Processor"),
        ("processor\t: 0\nCPU part\t: 0xd40\n", platform.machine()),  # as arm64 kernels have it
    ],
)
def test_processor_is_named_by_its_model_or_its_architecture(
    cpuinfo: str, model: str, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert node.processor(tmp_path / "cpuinfo") == model
    assert node.processor(), "of this machine"
