"""A quota of processor time counts as cores that a process may use."""

import os
from pathlib import Path

import pytest

from common.cores import usable_cores


def machine(folder: Path, path: str, root: str, version: int, quotas: dict[str, str]) -> Path:
    """A folder as /proc/self is, of a process in the control group `path` of a mount whose root is `root`."""
    mount = folder / "a mount"
    for group, text in quotas.items():
        (mount / group).mkdir(parents=True, exist_ok=True)
        if version == 2:
            (mount / group / "cpu.max").write_text(text)
        else:
            for name, value in zip(("quota", "period"), text.split(), strict=True):
                (mount / group / f"cpu.cfs_{name}_us").write_text(f"{value}\n")
    named = "0::" if version == 2 else "4:cpu,cpuacct:"
    (folder / "cgroup").write_text(f"7:memory:/elsewhere\n{named}{path}\n")
    kind = "cgroup2 cgroup2 rw,nsdelegate" if version == 2 else "cgroup cgroup rw,cpu,cpuacct"
    at = str(mount).replace(" ", "\\040")
    (folder / "mountinfo").write_text(
        f"30 1 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n31 1 0:27 {root} {at} rw "
        f"- {kind}\n"
    )
    return folder


@pytest.mark.parametrize(
    ("path", "root", "version", "quotas", "cores"),
    [
        ("/user/job", "/", 2, {".": "max 100000", "user": "max 100000", "user/job": "250000 100000"}, 2),
        ("/user/job", "/", 2, {"user": "150000 100000", "user/job": "max 100000"}, 1),
        ("/docker/x", "/docker/x", 2, {".": "300000 100000"}, 3),
        ("/", "/", 2, {".": "30000 100000"}, 1),
        ("/docker/x", "/docker/x", 1, {".": "200000 100000"}, 2),
        ("/job", "/", 1, {".": "-1 100000", "job": "-1 100000"}, 4),
        ("/job", "/", 1, {"job": "nonsense 0"}, 4),
        ("/job", "/", 2, {}, 4),
    ],
)
def test_quotas_count_as_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, root: str, version: int,
    quotas: dict[str, str], cores: int
) -> None:  # fmt: skip
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 5})
    assert usable_cores(machine(tmp_path, path, root, version, quotas)) == cores


def test_a_process_without_control_groups_has_its_cores(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
