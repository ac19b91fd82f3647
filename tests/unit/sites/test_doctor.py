"""The doctor parses Slurm's output and judges it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declared.site import Site, load_site
from sites import node_report, slurm, slurm_findings
from sites.findings import Finding
from sites.node_findings import check_clocks, check_file_locks, node_findings
from sites.node_job import reports
from sites.node_report import MARK, failing_line, lock_state, not_writable
from sites.slurm import Node

PROFILE = Path("profiles/slurm/config.yaml")

# Unabridged lines of Slurm 22.05.8.
CONFIG = """\
Configuration data as of 2026-11-21T03:32:50
AccountingStorageEnforce = none
AccountingStorageHost   = localhost
AccountingStorageType   = accounting_storage/none
AuthInfo                = socket=/run/ringside-cluster/munge.socket
ClusterName             = ringside
DefMemPerNode           = UNLIMITED
MaxMemPerNode           = UNLIMITED
MinJobAge               = 3600 sec
SelectTypeParameters    = CR_CORE
SlurmctldHost[0]        = vm(10.213.77.254)
SlurmdTimeout           = 120 sec
Epilog                  = (null)

Slurmctld(primary) at vm is UP
"""
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=1-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=node[1-3] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=3 TotalNodes=3 SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES=cpu=3,mem=18G,node=3,billing=3
PartitionName=gpu AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL Default=NO MaxTime=02:00:00 Nodes=node[4-5] State=DOWN DefMemPerCPU=1000 MaxMemPerNode=UNLIMITED
"""
NODES = """\
node1|idle|16|64000|1|(null)|(null)|none
node2|mixed-|16|64000|1|(null)|(null)|none
node3|drained*|16|64000|1|(null)|(null)|bad fan | see 42
node4|idle~|16|64000|1|(null)|(null)|none
node5|down|16|64000|1|(null)|(null)|Not responding
"""


@pytest.fixture
def site() -> Site:
    return load_site("virtual")


@pytest.fixture
def config() -> dict[str, str]:
    return slurm.parse_configuration(CONFIG)


def with_scheduler(site: Site, **keys: Any) -> Site:
    return replace(site, scheduler=replace(site.scheduler, **keys))


def node(name: str, state: str = "idle", processors: int = 16, memory_mb: int = 64000) -> Node:
    return Node(name, state, processors, memory_mb, "none")


def report(host: str = "node1", **differs: Any) -> dict[str, Any]:
    healthy = {
        "host": host,
        "python": "/p/python",
        "version": "3.11",
        "processors": 2,
        "checkout": True,
        "results": None,
        "lock": "held",
        "cache_seen": True,
        "cache": None,
        "scratch": None,
        "interfaces": {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": None},
        "infiniband": [],
        "setup": None,
        "devices": [0, None],
        "apptainer": None,
        "fuse": True,
        "binds": [],
        "disturbed": {"steal": 0.0, "others": 0.0},
        "clock_apart_s": -0.01,
    }
    return {**healthy, **differs}


def judged(reports: list[dict[str, Any]], site: Site) -> dict[str, Finding]:
    return {finding.subject: finding for finding in node_findings(reports, site, "/p/python", "3.11")}


class TestWhatSlurmPrints:
    def test_configuration(self, config: dict[str, str]) -> None:
        assert config["MinJobAge"] == "3600 sec"
        assert config["AuthInfo"] == "socket=/run/ringside-cluster/munge.socket"
        assert config["Epilog"] == ""

    def test_partitions(self) -> None:
        result = slurm.parse_partitions(PARTITIONS)
        assert list(result) == ["cpu", "gpu"]
        assert (result["cpu"]["MaxTime"], result["cpu"]["Default"]) == ("1-00:00:00", "YES")
        assert result["gpu"]["DefMemPerCPU"] == "1000"

    def test_nodes(self) -> None:
        result = slurm.parse_nodes(NODES)
        assert [node.name for node in result if node.is_usable] == ["node1", "node2", "node4"]
        assert [node.name for node in result if node.is_idle] == ["node1"]
        assert result[2].reason == "bad fan | see 42"

    @pytest.mark.parametrize(
        ("text", "expected_s"),
        [
            ("1-00:00:00", 86400),
            ("2-03:04:05", 183845),
            ("02:00:00", 7200),
            ("30:00", 1800),
            ("30", 1800),
            ("1-12", 129600),
            ("300 sec", 300),
            ("300", 18000),
            ("10 min", 600),
            ("UNLIMITED", None),
            ("NONE", None),
            ("", None),
        ],
    )
    def test_times(self, text: str, expected_s: float | None) -> None:
        assert slurm.parse_time_s(text) == expected_s

    @pytest.mark.parametrize(
        ("type_", "keeps_accounts"),
        [("accounting_storage/none", False), ("(null)", False), ("accounting_storage/slurmdbd", True)],
    )
    def test_accounting(self, type_: str, keeps_accounts: bool) -> None:
        assert (
            slurm.has_accounting(slurm.parse_configuration(f"AccountingStorageType = {type_}\n"))
            is keeps_accounts
        )


@pytest.mark.parametrize(
    ("written", "accounting", "age", "sacct", "code"),
    [
        ("squeue", False, "60 sec", True, "ok"),
        ("squeue", False, "59 sec", True, "forgets-jobs"),
        ("sacct", False, "300 sec", True, "no-accounts"),
        ("sacct", True, "2 sec", True, "ok"),
        ("sacct", True, "2 sec", False, "not-installed"),
        (None, False, "300 sec", True, "no-accounts"),
        (None, False, "300 sec", False, "ok"),
    ],
)
def test_snakemake_learns_of_the_end_of_jobs(
    written: str | None, accounting: bool, age: str, sacct: bool, code: str
) -> None:
    config = {"MinJobAge": age, "AccountingStorageType": "accounting_storage/slurmdbd" if accounting else ""}
    result = slurm_findings.check_job_status(config, written, PROFILE, sacct)
    assert (result.verdict, result.code) == ("ok" if code == "ok" else "FAIL", code)


@pytest.mark.parametrize(
    ("names", "keys", "code"),
    [
        ("cpu gpu", {}, "ok"),
        ("cpu gpu", {"partition": "cpus"}, "unknown-name"),
        ("gpu", {}, "missing-key"),
        ("cpu gpu", {"partition": "gpu"}, "partition-down"),
        ("up", {"partition": "up", "account": "c"}, "account-not-allowed"),
        ("up", {"partition": "up", "account": "b"}, "ok"),
    ],
)
def test_partition(site: Site, names: str, keys: dict[str, str], code: str) -> None:
    rows = slurm.parse_partitions(PARTITIONS)
    rows["up"] = {**rows["gpu"], "State": "UP", "PartitionName": "up"}
    chosen = {name: rows[name] for name in names.split()}
    result, name = slurm_findings.check_partition(chosen, with_scheduler(site, **keys))
    assert (result.code, name is not None) == (code, code == "ok")


class TestNodes:
    ALL_NODES = ("node1", "node2", "node3", "node4", "node5")

    def test_enough_although_one_is_lost(self, site: Site) -> None:
        result = slurm_findings.check_nodes(slurm.parse_nodes(NODES)[:4], self.ALL_NODES, site)
        assert (result.verdict, result.code) == ("warn", "nodes-unusable")
        assert "3 are usable, 1 idle" in result.text and "node3 is drained*" in result.text

    def test_too_few(self, site: Site) -> None:
        result = slurm_findings.check_nodes(slurm.parse_nodes(NODES)[:3], self.ALL_NODES, site)
        assert (result.verdict, result.code) == ("FAIL", "too-few-nodes")
        assert "is 3, but 2 are usable" in result.text

    def test_the_site_leaves_too_few(self, site: Site) -> None:
        nodes = [node("node1"), node("node2"), node("node3")]
        assert slurm_findings.check_nodes(nodes, self.ALL_NODES, site).verdict == "ok"
        assert (
            slurm_findings.check_nodes(nodes, self.ALL_NODES, with_scheduler(site, exclude="node2")).verdict
            == "FAIL"
        )
        assert (
            slurm_findings.check_nodes(
                nodes, self.ALL_NODES, with_scheduler(site, nodelist="node[1-2]")
            ).verdict
            == "FAIL"
        )

    @pytest.mark.parametrize(
        ("constraint", "left"),
        [("a100", 2), ("a100&ib", 1), ("h100", 0), ("a100|h100", 3), ("[a100|h100]", 3)],
    )
    def test_features(self, site: Site, constraint: str, left: int) -> None:
        features: list[tuple[str, ...]] = [("a100", "ib"), ("a100",), ()]
        nodes = [
            replace(node(f"node{i}"), features=node_features)
            for i, node_features in enumerate(features, start=1)
        ]
        assert len(slurm_findings.eligible_nodes(nodes, with_scheduler(site, constraint=constraint))) == left

    @pytest.mark.parametrize("key", ["nodelist", "exclude"])
    def test_unknown_names(self, site: Site, key: str) -> None:
        result = slurm_findings.check_nodes([], self.ALL_NODES, with_scheduler(site, **{key: "node[4-6]"}))
        assert result.code == "unknown-name" and f"scheduler.{key}: node6 " in result.text

    @pytest.mark.parametrize(
        ("n_gpus", "code", "types"),
        [(2, "ok", "(a100, v100)"), (4, "ok", "(a100)"), (5, "too-few-devices", "")],
    )
    def test_gpus(self, site: Site, n_gpus: int, code: str, types: str) -> None:
        kinds = ["gpu:a100:4", "gpu:v100:2,nvme:1", ""]
        nodes = [replace(node(f"node{i}"), gres=gres) for i, gres in enumerate(kinds, start=1)]
        site = replace(site, device="cuda", devices_per_node=n_gpus, nodes=1)
        result = slurm_findings.check_gpus(nodes, site)
        assert result.code == code and types in result.text

    def test_processors(self, site: Site) -> None:
        nodes = [node("node1"), node("node2", processors=8)]
        assert slurm_findings.check_processors(nodes, replace(site, cores=8)).verdict == "ok"
        result = slurm_findings.check_processors(nodes, replace(site, cores=9))
        assert (result.verdict, result.code) == ("FAIL", "too-few-processors")


class TestTimes:
    def row(self, max_time: str) -> dict[str, str]:
        return {"PartitionName": "cpu", "MaxTime": max_time}

    def test_within(self, site: Site) -> None:
        for max_time in ("UNLIMITED", "08:00:00"):  # a block asks for 8 hours
            assert [
                result.verdict for result in slurm_findings.check_time_limits(self.row(max_time), site)
            ] == ["ok"]

    def test_over(self, site: Site) -> None:
        block, *rest = slurm_findings.check_time_limits(self.row("07:59:00"), site)
        assert (block.verdict, block.subject, rest) == ("FAIL", "time of a block", [])
        assert block.code == "time-limit" and block.text.endswith("at most 28740")
        run, _ = slurm_findings.check_time_limits(
            self.row("04:00"), site
        )  # a run asks for 100 + 180 s, in whole minutes
        assert (run.verdict, run.code) == ("FAIL", "time-limit")
        assert "asks for 300 s" in run.text and run.text.endswith("at most 60")

    def test_a_wait_for_a_quiet_machine_is_the_jobs(self, site: Site) -> None:
        run, _ = slurm_findings.check_time_limits(self.row("05:00"), replace(site, wait_for_quiet=100))
        assert run.subject == "time of a run"
        assert "asks for 420 s" in run.text and run.text.endswith("at most 20")

    def test_builds_in_jobs(self, site: Site) -> None:
        result = slurm_findings.check_time_limits(
            self.row("01:00:00"), with_scheduler(site, build_on="job", block_limit_s=3600)
        )
        assert [(item.verdict, item.subject) for item in result] == [("FAIL", "time of a build")]

    @pytest.mark.parametrize(
        ("timeout", "repeated"), [("101 sec", False), ("100 sec", True), ("0 sec", False)]
    )
    def test_lost_node(self, site: Site, timeout: str, repeated: bool) -> None:
        finding = slurm_findings.check_lost_node_timeout({"SlurmdTimeout": timeout}, site)
        assert finding.verdict == "ok" and finding.text.endswith("its run is repeated") is repeated


class TestMemory:
    NODES_OF_64_GB = (node("node1", memory_mb=64000),)

    @pytest.mark.parametrize(
        ("select", "default", "requested", "verdict"),
        [
            ("CR_CORE", {"DefMemPerCPU": "10"}, None, "ok"),
            ("CR_CORE_MEMORY", {"DefMemPerNode": "UNLIMITED"}, None, "ok"),
            ("CR_CORE_MEMORY", {"DefMemPerNode": "4096"}, None, "ok"),
            ("CR_CORE_MEMORY", {"DefMemPerNode": "4095"}, None, "warn"),
            ("CR_CPU_MEMORY", {"DefMemPerCPU": "1000"}, None, "warn"),
            ("CR_CPU_MEMORY", {"DefMemPerCPU": "1000"}, 64000, "ok"),
            ("CR_CPU_MEMORY", {}, 64001, "FAIL"),
            ("CR_CPU_MEMORY", {"MaxMemPerNode": "1000"}, 2000, "FAIL"),
        ],
    )
    def test_verdict(
        self, site: Site, select: str, default: dict[str, str], requested: int | None, verdict: str
    ) -> None:
        for source in ("configuration", "partition"):
            config = {"SelectTypeParameters": select, **(default if source == "configuration" else {})}
            row = default if source == "partition" else {}
            assert (
                slurm_findings.check_memory(
                    config, row, self.NODES_OF_64_GB, with_scheduler(site, memory_mb=requested)
                ).verdict
                == verdict
            )


class TestAccount:
    ENFORCED = {"AccountingStorageEnforce": "associations,limits"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("mine", "requested", "enforced", "verdict"),
        [
            (None, None, True, "ok"),
            (None, "a", True, "ok"),
            (["a", "b"], "a", True, "ok"),
            (["a", "b"], None, True, "ok"),
            (["a", "b"], "c", True, "FAIL"),
            (["a", "b"], "c", False, "warn"),
            ([], None, True, "FAIL"),
        ],
    )
    def test_verdict(
        self, site: Site, mine: list[str] | None, requested: str | None, enforced: bool, verdict: str
    ) -> None:
        result = slurm_findings.check_account(
            self.ENFORCED if enforced else {}, mine, with_scheduler(site, account=requested)
        )
        assert result.verdict == verdict


class TestWhatNodesSay:
    def test_healthy(self, site: Site) -> None:
        result = judged([report("node1"), report("node2")], site)
        assert {finding.verdict for finding in result.values()} == {"ok"}

    @pytest.mark.parametrize(
        ("subject", "differs", "code"),
        [
            ("checkout", {"checkout": False}, "inaccessible"),
            ("controller's python", {"python": "/usr/bin/python3"}, "no-python"),
            ("controller's python", {"version": "3.9"}, "other-python"),
            ("results", {"results": "Read-only"}, "not-writable"),
            ("cache", {"cache_seen": False}, "inaccessible"),
            ("interface", {"interfaces": {"lo": "::1"}}, "no-interface"),
            ("interface", {"interfaces": {"eth0": None}}, "no-address"),
            ("setup", {"setup": ["module load x", "not found"]}, "setup-fails"),
            ("processors of the machine", {"processors": 1}, "too-few-processors"),
            ("devices", {"devices": [1, None]}, "too-few-devices"),
            ("devices", {"devices": [0, "broken"]}, "too-few-devices"),
            ("fabric", {"infiniband": []}, "no-infiniband"),
            ("scratch", {"scratch": "full"}, "not-writable"),
        ],
    )
    def test_what_one_node_lacks(self, site: Site, subject: str, differs: dict[str, Any], code: str) -> None:
        settings = {"device": "cuda", "devices_per_node": 2, "cores": 2, "fabric": "infiniband"}
        site = replace(site, **settings, setup=("module load x",), scratch=Path("/scratch"))
        able = {"devices": [2, None], "infiniband": ["mlx5_0"]}
        result = judged([report("node1", **able), report("node2", **{**able, **differs})], site)
        assert [name for name, finding in result.items() if finding.verdict == "FAIL"] == [subject]
        assert result[subject].code == code and result[subject].text.startswith("node2: ")

    def test_every_listed_interface_counts(self, site: Site) -> None:
        result = judged([report()], replace(site, interface="eth0,ib0"))["interface"]
        assert (result.verdict, result.code) == ("FAIL", "no-address")

    def test_a_cache_that_nodes_only_read(self, site: Site) -> None:
        reports = [report(cache="Permission denied")]
        assert judged(reports, site)["cache"].verdict == "ok"
        assert judged(reports, with_scheduler(site, build_on="job"))["cache"].verdict == "FAIL"

    def test_apptainer_counts_only_where_it_is_used(self, site: Site) -> None:
        assert "apptainer" not in judged([report()], site)
        site = replace(site, deployment="apptainer")
        assert judged([report()], site)["apptainer"].verdict == "FAIL"
        nodes = report(apptainer="apptainer version 1.4.5")
        assert judged([nodes], site)["apptainer"].verdict == "ok"
        assert judged([{**nodes, "fuse": False}], site)["fuse"].verdict == "warn"
        binds = judged([{**nodes, "binds": ["/data"]}], site)["binds"]
        assert (binds.verdict, binds.code) == ("FAIL", "missing-folder")

    @pytest.mark.parametrize(
        ("lock", "verdict"), [("held", "ok"), ("free", "warn"), ("Function not implemented", "warn")]
    )
    def test_locks(self, lock: str, verdict: str) -> None:
        assert check_file_locks([report(), report("node2", lock=lock)]).verdict == verdict

    @pytest.mark.parametrize(
        ("apart_s", "verdict"),
        [(0.4, "ok"), (-0.4, "ok"), (0.6, "warn"), (-4.9, "warn"), (5.1, "FAIL"), (-60, "FAIL")],
    )
    def test_clocks(self, apart_s: float, verdict: str) -> None:
        result = check_clocks([report(), report("node2", clock_apart_s=apart_s)])
        assert result.verdict == verdict
        assert ("node2" in result.text) == (verdict != "ok")

    def test_lines_of_srun(self) -> None:
        first, second = (MARK + json.dumps({"host": host, "clock": 100.0}) for host in ("node1", "node2"))
        lines = [
            (98.0, "1: Loading cuda/12\n"),
            (99.0, f"1: {second[:20]}\n"),  # srun breaks long lines, and repeats the label
            (99.5, f"0: {first}\n"),
            (99.75, f"1: {second[20:]}\n"),
            (100.0, "0: logout\n"),
        ]
        result = reports(lines)
        assert [item["host"] for item in result] == ["node1", "node2"]
        assert result[1]["clock_apart_s"] == pytest.approx(0.25)


class TestTheReport:
    def test_setup_lines(self) -> None:
        assert failing_line([]) is None
        assert failing_line(["export A=1", 'test "$A" = 1']) is None
        assert failing_line(["true", "exit 3", "true"]) == ["exit 3", "status 3"]
        line, message = failing_line(["true", "no-such-program"]) or ["", ""]
        assert (line, "not found" in message) == ("no-such-program", True)

    def test_folders(self, tmp_path: Path) -> None:
        assert not_writable(str(tmp_path)) is None
        assert not_writable(str(tmp_path / "absent")) == "No such file or directory"
        assert list(tmp_path.iterdir()) == []

    def test_a_lock_that_nobody_holds(self, tmp_path: Path) -> None:
        (tmp_path / "lock").touch()
        assert lock_state(str(tmp_path / "lock")) == "free"
        assert lock_state(str(tmp_path / "absent")) == "No such file or directory"


@pytest.mark.parametrize(
    ("folder", "code", "kind"),
    [
        ("/scratch/a b/checkout", "in-memory", "tmpfs"),
        ("/scratch/a", "ok", "nfs4"),
        ("/home/u", "ok", "ext4"),
        ("/over/x", "ok", "lustre"),
    ],
)
def test_folder_in_memory_is_not_shared(tmp_path: Path, folder: str, code: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\nserver:/s /scratch nfs4 rw 0 0\ntmpfs /scratch/a\\040b tmpfs rw 0 0\n"
        "tmpfs /over tmpfs rw 0 0\nfs /over lustre rw 0 0\n"
    )
    result = slurm_findings.check_shared_folder("checkout", Path(folder), mounts)
    assert result.code == code and kind in result.text


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that returns the devices of a machine with this nvidia-smi (lines of a shell) and variables."""

    def devices(smi: str | None, variables: Mapping[str, str]) -> Any:
        monkeypatch.setattr(node_report, "_KFD", f"{tmp_path}/kfd/*/properties")
        if smi:
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
            (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if smi else str(tmp_path))
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return node_report.devices()

    return devices


@pytest.mark.parametrize(
    ("n_amd", "variables", "expected"),
    [
        (0, {}, [2, None]),
        (0, {"CUDA_VISIBLE_DEVICES": "1"}, [1, "CUDA_VISIBLE_DEVICES=1"]),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, [0, "CUDA_VISIBLE_DEVICES="]),
        (0, {"CUDA_VISIBLE_DEVICES": "1,-1,0"}, [1, "CUDA_VISIBLE_DEVICES=1,-1,0"]),
        (0, {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0"}, [2, None]),
        (0, {"CUDA_VISIBLE_DEVICES": "2,3"}, [0, "CUDA_VISIBLE_DEVICES=2,3"]),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-b,1"}, [2, None]),
        (4, {}, [4, None]),
        (4, {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "0,2"}, [2, "HIP_VISIBLE_DEVICES=0,2"]),
        # Slurm sets both if gres.conf does not name the vendor of the GPUs.
        (4, {"ROCR_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}, [0, "CUDA_VISIBLE_DEVICES=3"]),
    ],
)
def test_accelerators_that_a_variable_hides_do_not_count(
    n_amd: int, variables: dict[str, str], expected: list[Any], tmp_path: Path, machine: Callable[..., Any]
) -> None:
    for number, simd_count in enumerate([0, *[440] * n_amd]):  # the first node is the CPU
        folder = tmp_path / "kfd" / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(
            f"cpu_cores_count 64\nsimd_count {simd_count}\nmem_banks_count 1\n"
        )
    smi = "echo 'GPU 0: NVIDIA A100 (UUID: GPU-a)'; echo 'GPU 1: NVIDIA A100 (UUID: GPU-b)'"
    assert machine(smi, variables) == expected


@pytest.mark.parametrize(
    ("smi", "visible", "expected"),
    [
        (None, None, "nvidia-smi is not installed"),
        (None, "0,1", "nvidia-smi is not installed; CUDA_VISIBLE_DEVICES=0,1"),
        ("echo 'NVIDIA-SMI has failed'; exit 9", "0,1", "NVIDIA-SMI has failed; CUDA_VISIBLE_DEVICES=0,1"),
    ],
)
def test_silent_driver_differs_from_a_job_without_gpus(
    smi: str | None, visible: str | None, expected: str, machine: Callable[..., Any]
) -> None:
    assert machine(smi, {"CUDA_VISIBLE_DEVICES": visible} if visible else {}) == [0, expected]


def test_numbers_of_parts_of_a_divided_gpu_count(machine: Callable[..., Any]) -> None:
    lines = [
        "GPU 0: NVIDIA H100 (UUID: GPU-a)",
        *(f"  MIG 1g.10gb Device {n}: (UUID: MIG-{n})" for n in (0, 1)),
    ]
    assert machine("; ".join(f"echo '{line}'" for line in lines), {"CUDA_VISIBLE_DEVICES": "1"}) == [
        1,
        "MIG: a program sees one of 2 parts",
    ]
