"""The site file that `./ringside site` writes follows from the answers of Slurm and a node."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import dump_line
from declared.site import Site
from declared.virtual import parse
from sites import site_file, slurm
from sites.node_report import _MODULES
from sites.site_values import (
    NodeAnswers,
    SlurmAnswers,
    choose_account,
    choose_interface,
    cluster_site,
    folded,
    group_nodes,
    machine_site,
    usable_partition,
)

# As Slurm 22.05.8 prints them; the cluster has processors, and three kinds of nodes in the partition gpu.
CONFIG = """\
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = borealis
MaxMemPerNode           = UNLIMITED
SelectTypeParameters    = CR_CORE_MEMORY
SlurmdTimeout           = 300 sec
SLURM_VERSION           = 22.05.8
"""
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=c[01-20] State=UP DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
PartitionName=gpu AllowGroups=ALL AllowAccounts=vision,climate Default=NO MaxNodes=16 MaxTime=2-00:00:00 Nodes=g[01-07] State=UP DefMemPerNode=UNLIMITED MaxMemPerNode=400000
PartitionName=debug AllowGroups=ALL AllowAccounts=ALL Default=NO MaxNodes=1 MaxTime=00:03:00 Nodes=c01 State=UP
PartitionName=old AllowGroups=ALL AllowAccounts=ALL Default=NO MaxTime=UNLIMITED Nodes=o1 State=DRAIN
"""
GPU_NODES = """\
g01|mixed|128|515000|2|gpu:a100:4(S:0-1)|a100,ib,rome|none
g02|idle|128|515000|2|gpu:a100:4(S:0,1)|rome,a100,ib|none
g03|idle|128|515000|2|gpu:a100:4(S:0-1)|a100,ib,rome|none
g04|down*|128|515000|2|gpu:a100:4(S:0-1)|a100,ib,rome|Not responding
g05|idle|64|257000|2|gpu:v100:2(S:0),nvme:1|v100,ib|none
g06|idle|64|257000|2|gpu:v100:2(S:0),nvme:1|v100,ib|none
g07|idle|96|257000|2|(null)|ib|none
"""
NODE = (
    "NodeName=g01 Arch=x86_64 CPUEfctv=126 CPUTot=128 Gres=gpu:a100:4(S:0-1) NodeAddr=g01 OS=Linux 5.14.0 #1 "
    "SMP RealMemory=515000 MemSpecLimit=3000 State=MIXED ThreadsPerCore=2 Partitions=gpu"
)
# The report of such a node.
REPORT: dict[str, Any] = {
    "host": "g02",
    "processors": 128,
    "memory_mb": 515000,
    "checkout": True,
    "cache_seen": True,
    "interfaces": {
        "lo": "127.0.0.1",
        "eno1": "10.1.0.2",
        "ib0": "10.2.0.2",
        "docker0": "172.17.0.1",
        "ib1": None,
    },
    "own_address": "10.1.0.2",
    "links": {
        "lo": {"mbit_s": None, "up": True, "device": False},
        "eno1": {"mbit_s": 1000, "up": True, "device": True},
        "ib0": {"mbit_s": 100000, "up": True, "device": True},
        "docker0": {"mbit_s": 400000, "up": True, "device": False},
        "ib1": {"mbit_s": 200000, "up": True, "device": True},
    },
    "ports": [
        {"device": "mlx5_0", "layer": "InfiniBand", "state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)"},
        {"device": "mlx5_1", "layer": "InfiniBand", "state": "1: DOWN", "rate": "10 Gb/sec (4X SDR)"},
    ],
    "accelerators": ["NVIDIA A100-SXM4-40GB, 550.54.15"] * 4,
    "devices": [4, None],
    "amd": 0,
    "apptainer": "apptainer version 1.3.0",
    "fuse": True,
    "user_namespaces": True,
    "modules": ["pytorch/2.3", "tensorflow/2.16"],
    "scratch_there": {"/scratch": 2**40, "$TMPDIR=/local/17": 2**39},
}
FOLDER = Path("/shared/me")


@pytest.fixture
def answers() -> SlurmAnswers:
    """The answers of the cluster for its partition gpu."""
    return SlurmAnswers(
        config=slurm.parse_configuration(CONFIG),
        partition=usable_partition(slurm.parse_partitions(PARTITIONS), "gpu"),
        kinds=group_nodes(slurm.parse_nodes(GPU_NODES)),
        other_nodes="g[05-07]",
        node=slurm.parse_fields(NODE),
        mine=["chemistry", "climate", "vision"],
        default_account="chemistry",
        mpi=["none", "pmi2", "pmix"],
        virtual=None,
    )


def written(answers: SlurmAnswers, node_answers: NodeAnswers) -> str:
    return site_file.render_site("# head", cluster_site(answers, node_answers, FOLDER))


def site(answers: SlurmAnswers, **differs: Any) -> Site:
    """Return the site that is written for these answers, as the workflow loads it."""
    return site_file.load_text("borealis", written(answers, NodeAnswers({**REPORT, **differs})))


class TestWhatSlurmPrints:
    def test_nodes(self) -> None:
        node = slurm.parse_nodes(GPU_NODES)[4]
        assert (node.gres, node.features, node.threads_per_core) == ("gpu:v100:2,nvme:1", ("ib", "v100"), 2)
        assert slurm.parse_nodes(GPU_NODES)[6].gres == ""

    @pytest.mark.parametrize(
        ("gres", "expected"),
        [
            ("", (0, ())),
            ("gpu:4", (4, ())),
            ("gpu:a100:4,nvme:1", (4, ("a100",))),
            ("gpu:a100:2,gpu:v100:2", (4, ("a100", "v100"))),
            ("gpu:a100_3g.20gb:2", (2, ("a100_3g.20gb",))),
            ("gpu", (1, ())),
            ("gpu:tesla", (1, ("tesla",))),
            ("craynetwork:4,mps:100", (0, ())),
        ],
    )
    def test_gpus(self, gres: str, expected: tuple[int, tuple[str, ...]]) -> None:
        assert slurm.parse_gpus(gres) == expected

    @pytest.mark.parametrize(
        "text",
        [
            (
                "MPI plugin types are...\n"
                "\tpmix\n"
                "\tnone\n"
                "\tpmi2\n"
                "specific pmix plugin versions available: pmix_v4\n"
            ),
            "srun: MPI types are...\nsrun: pmix\nsrun: none\nsrun: pmi2\n",
        ],
    )
    def test_types_of_mpi(self, text: str) -> None:
        assert slurm.parse_mpi_types(text) == ["pmix", "none", "pmi2"]

    def test_modules_of_frameworks(self) -> None:
        text = (
            "/opt/modules/all:\n"
            "cuda/12.4\n"
            "PyTorch/2.3-foss(default)\n"
            "pytorch-lightning/2.1\n"
            "lbann/0.104\n"
            "zlib/1.3\n"
        )
        assert _MODULES.findall(text) == ["PyTorch/2.3-foss(default)", "pytorch-lightning/2.1", "lbann/0.104"]


@pytest.mark.parametrize(
    ("requested", "code", "got"),
    [("gpus", "unknown-name", "gpus"), ("old", "partition-down", "DRAIN"), ("debug", "time-limit", 180)],
)
def test_unusable_partition_is_refused(requested: str, code: str, got: object) -> None:
    with pytest.raises(InputError) as refused:
        usable_partition(slurm.parse_partitions(PARTITIONS), requested)
    assert (refused.value.code, refused.value.file, refused.value.got) == (code, "--partition", got)


def test_default_partition_is_chosen() -> None:
    assert usable_partition(slurm.parse_partitions(PARTITIONS), "")["PartitionName"] == "cpu"


class TestCluster:
    def test_nodes_with_gpus(self, answers: SlurmAnswers) -> None:
        result = site(answers)
        assert (result.launcher, result.placement, result.deployment) == ("slurm", "distinct-nodes", "venv")
        assert (result.device, result.devices_per_node, result.ranks_per_node) == ("cuda", 4, 4)
        assert (result.nodes, result.cores) == (3, 126), (
            "the usable nodes of the kind; less the cores that Slurm keeps"
        )
        assert (result.interface, result.fabric, result.bandwidth_bytes_s) == ("ib0", "infiniband", 12.5e9)
        assert result.torch_index is None
        jobs = result.scheduler
        assert (jobs.partition, jobs.constraint, jobs.exclude) == ("gpu", "a100", None)
        assert jobs.memory_mb == 400000, "MaxMemPerNode of the partition"
        assert (result.time_limit_s, jobs.block_limit_s) == (900, 28800)

    def test_every_line_says_where_it_is_from(self, answers: SlurmAnswers) -> None:
        text = written(answers, NodeAnswers(REPORT))
        words = " ".join(text.replace("# ", "").split())  # comments continue on the next lines
        for part in (
            (
                "left out: 2 x 64 CPUs, 257000 MB, gres gpu:v100:2,nvme:1, features ib,v100 (g05, g06); 1 x "
                "96 CPUs"
            ),
            "4 x NVIDIA A100-SXM4-40GB, driver 550.54.15",
            "of which jobs get 126 (scontrol show node g01: CPUEfctv)",
            "less MemSpecLimit 3000",
            "3 of 4 nodes of this kind are up",
            "eno1 (1000 Mbit/s), ib0 (100000 Mbit/s); ASSUMED",
            "mlx5_0 100 Gb/sec (4X EDR) (InfiniBand)",
            "pytorch/2.3, tensorflow/2.16",
            "user namespaces are there",
            "/scratch (1024 GiB free), $TMPDIR=/local/17 (512 GiB free)",
            "srun --mpi=list: none, pmi2, pmix",
        ):
            assert part in words
        lines = [
            line for line in text.splitlines() if line and not line.startswith("#") and line != "scheduler:"
        ]
        before = dict(zip(text.splitlines()[1:], text.splitlines(), strict=False))
        assert all("  # " in line or before[line].lstrip().startswith("#") for line in lines)
        assert max(map(len, text.splitlines())) <= site_file.WIDTH

    def test_without_a_feature_of_its_own_the_others_are_excluded(self, answers: SlurmAnswers) -> None:
        equal = [
            replace(kind, nodes=tuple(replace(node, features=("ib",)) for node in kind.nodes))
            for kind in answers.kinds
        ]
        jobs = site(replace(answers, kinds=equal)).scheduler
        assert (jobs.constraint, jobs.exclude) == (None, "g[05-07]")

    def test_many_nodes_are_bounded(self, answers: SlurmAnswers) -> None:
        kind = answers.kinds[0]
        large = replace(kind, nodes=tuple(replace(kind.nodes[0], name=f"g{i}") for i in range(124)))
        assert site(replace(answers, kinds=[large])).nodes == 8
        assert " 16 (MaxNodes)" in written(replace(answers, kinds=[large]), NodeAnswers(REPORT))
        bounded = replace(answers, kinds=[large], partition={**answers.partition, "MaxNodes": "2"})
        assert site(bounded).nodes == 2

    @pytest.mark.parametrize(
        ("max_time", "expected"),
        [("UNLIMITED", (900, 28800)), ("00:10:00", (420, 600)), ("04:00", (60, 240))],
    )
    def test_times(self, answers: SlurmAnswers, max_time: str, expected: tuple[int, int]) -> None:
        result = site(replace(answers, partition={**answers.partition, "MaxTime": max_time}))
        assert (result.time_limit_s, result.scheduler.block_limit_s) == expected

    def test_memory_that_is_not_rationed_is_not_asked_for(self, answers: SlurmAnswers) -> None:
        config = {**answers.config, "SelectTypeParameters": "CR_CORE"}
        assert site(replace(answers, config=config)).scheduler.memory_mb is None

    def test_processors_alone(self, answers: SlurmAnswers) -> None:
        """InfiniBand is not used, since Gloo supports sockets only."""
        node_kinds = group_nodes(slurm.parse_nodes(GPU_NODES.splitlines()[-1]))
        result = site(replace(answers, kinds=node_kinds, node={}), accelerators=[])
        assert (result.device, result.devices_per_node, result.ranks_per_node, result.cores) == (
            "cpu",
            0,
            1,
            96,
        )
        assert (result.interface, result.fabric, result.bandwidth_bytes_s) == ("ib0", "ethernet", 12.5e9)
        assert result.torch_index is not None

    def test_parts_of_a_gpu_train_one_at_a_time(self, answers: SlurmAnswers) -> None:
        result = site(answers, devices=[1, "MIG: a program sees one of 4 parts"])
        assert (result.device, result.devices_per_node, result.ranks_per_node) == ("cuda", 1, 1)

    def test_devices_that_slurm_does_not_allocate(self, answers: SlurmAnswers) -> None:
        node_kinds = group_nodes(slurm.parse_nodes(GPU_NODES.splitlines()[-1]))
        assert site(replace(answers, kinds=node_kinds, node={})).device == "cpu"
        assert "Slurm allocates none" in written(
            replace(answers, kinds=node_kinds, node={}), NodeAnswers(REPORT)
        )

    def test_a_home_that_nodes_do_not_see(
        self, answers: SlurmAnswers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RINGSIDE_CACHE", raising=False)
        assert site(answers).cache == Path("~/.cache/ringside").expanduser()
        assert site(answers, cache_seen=False).cache == FOLDER / "ringside-cache"

    def test_no_node_was_seen(self, answers: SlurmAnswers) -> None:
        text = written(answers, NodeAnswers(None, "none was free within 45 s"))
        result = site_file.load_text("borealis", text)
        assert (result.device, result.devices_per_node, result.fabric, result.interface) == (
            "cuda",
            4,
            "ethernet",
            "eth0",
        )
        (line,) = [line for line in text.splitlines() if line.startswith("interface")]
        assert "ASSUMED: no node was seen" in line and "none was free" not in line, (
            "it is said once, in the head"
        )

    def test_several_ports_have_the_rate_of_one(self, answers: SlurmAnswers) -> None:
        ports = [{**REPORT["ports"][0], "device": f"mlx5_{i}"} for i in range(4)]
        assert site(answers, ports=ports).bandwidth_bytes_s == 12.5e9
        text = written(answers, NodeAnswers({**REPORT, "ports": ports}))
        assert "# variables: {NCCL_IB_HCA: 'mlx5_0,mlx5_1,mlx5_2,mlx5_3'}" in text

    def test_roce_is_ethernet(self, answers: SlurmAnswers) -> None:
        result = site(answers, ports=[{**REPORT["ports"][0], "layer": "Ethernet"}])
        assert (result.device, result.fabric) == ("cuda", "ethernet"), "NCCL may use it, or sockets"

    def test_the_virtual_cluster(self, answers: SlurmAnswers) -> None:
        settings = parse(nodes="3", bandwidth="123.4567mbit", cpu="0.6", memory="6G", accounting=False)
        node_kinds = group_nodes(slurm.parse_nodes("node1|idle|1|6144|1|(null)|(null)|none\n"))
        config = {**answers.config, "SlurmdTimeout": "120 sec"}
        virtual = replace(answers, virtual=settings, kinds=node_kinds, node={}, config=config)
        result = site(virtual)
        assert (result.placement, result.nodes, result.cores, result.cpu_share) == ("virtual", 3, 1, 0.6)
        assert result.bandwidth_bytes_s == settings.bandwidth_bytes_s, (
            "to the last digit: the doctor compares them"
        )
        assert result.time_limit_s == 100
        unshaped = replace(virtual, virtual=replace(settings, bandwidth_bytes_s=None, cpu_share=None))
        assert (site(unshaped).bandwidth_bytes_s, site(unshaped).cpu_share) == (None, None)

    def test_what_nodes_say_stays_in_its_comment(self, answers: SlurmAnswers) -> None:
        result = site(
            answers,
            modules=["pytorch\ndevice: cpu", "x\x1b[2J\rpytorch"],
            apptainer="1.3\n\nfabric: ethernet",
        )
        assert (result.device, result.fabric) == ("cuda", "infiniband")


class TestAccount:
    @pytest.mark.parametrize(
        ("mine", "default", "allowed", "expected"),
        [
            (["a", "b"], "a", "ALL", "a"),
            (["a", "b"], "a", "b,c", "b"),
            (["a"], "a", "b,c", None),
            (["a"], None, "ALL", "a"),
            ([], None, "ALL", None),
        ],
    )
    def test_account(
        self, answers: SlurmAnswers, mine: list[str], default: str | None, allowed: str, expected: str | None
    ) -> None:
        row = {**answers.partition, "AllowAccounts": allowed}
        result = choose_account(replace(answers, mine=mine, default_account=default, partition=row))
        assert (result[0] if result else None) == expected


class TestInterface:
    def chosen(self, **differs: Any) -> str | None:
        result = choose_interface({**REPORT, **differs})
        return result[0] if result else None

    def test_the_fastest_with_an_address(self) -> None:
        assert self.chosen() == "ib0"

    def test_of_two_the_one_with_the_address_of_the_node(self) -> None:
        links = {name: {"mbit_s": None, "up": True, "device": True} for name in REPORT["links"]}
        assert self.chosen(links=links) == "eno1"

    def test_not_one_that_is_down(self) -> None:
        links = {**REPORT["links"], "ib0": {"mbit_s": 100000, "up": False, "device": True}}
        assert self.chosen(links=links) == "eno1"

    def test_a_bond_with_the_address_of_the_node(self) -> None:
        links = {"bond0": {"mbit_s": 20000, "up": True, "device": False}}
        assert self.chosen(interfaces={"bond0": "10.1.0.2"}, links=links) == "bond0"


class TestMachine:
    def test_processors(self) -> None:
        text = site_file.render_site("# head", machine_site({**REPORT, "accelerators": []}))
        result = site_file.load_text("mine", text)
        assert (result.launcher, result.placement, result.interface) == ("local", "emulated", "lo")
        assert (result.device, result.nodes, result.ranks_per_node) == ("cpu", 2, 1)
        assert "cores: auto" in text and result.torch_index is not None

    def test_accelerators(self) -> None:
        result = site_file.load_text("mine", site_file.render_site("# head", machine_site(REPORT)))
        assert (result.device, result.devices_per_node) == ("cuda", 4)
        assert (result.nodes, result.ranks_per_node) == (1, 4), "a device for each rank"
        assert result.torch_index is None


@pytest.mark.parametrize(
    ("names", "listed", "expected"),
    [
        ("g05,g06,g07", "g[05-07]", "g[05-07]"),
        ("r1n1,r2n1", "r[1-2]n[1]", "r1n1,r2n1"),  # which this workflow does not read
        ("a,b", "", "a,b"),
    ],
)
def test_names_are_folded_as_far_as_they_can_be_read(names: str, listed: str, expected: str) -> None:
    assert folded(names, listed) == expected


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (125e6, "key: 125e+6"),
        (15432087.5, "key: 15.4320875e+6"),
        (0.6, "key: 0.6"),
        ("a: b # c", "key: 'a: b # c'"),
        ("010", "key: '010'"),
        (["module load x"], "key: [module load x]"),
        ("word " * 40, f"key: '{'word ' * 40}'"),
        ("two\nlines", '"key": "two\\nlines"'),
    ],
)
def test_a_key_is_one_line(value: Any, line: str) -> None:
    assert dump_line("key", value) == line


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "code", "file"),
        [
            ("", "bad-pattern", ""),
            ("My_Cluster", "bad-pattern", ""),
            ("../x", "bad-pattern", ""),
            ("local", "already-there", "config/sites/local.yaml"),
        ],
    )
    def test_names(self, name: str, code: str, file: str) -> None:
        with pytest.raises(InputError) as refused:
            site_file.write_site(name)
        assert (refused.value.code, refused.value.file) == (code, file)

    @pytest.mark.parametrize(
        ("programs", "options", "code"),
        [
            ([], {"partition": "gpu"}, "not-installed"),
            (["sinfo"], {"partition": "gpu", "local": True}, "conflicting-keys"),
            (["oarnodes"], {}, "not-possible-here"),
            (["sinfo"], {}, "scheduler-silent"),
        ],
    )
    def test_machines(
        self,
        programs: list[str],
        options: dict[str, Any],
        code: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for program in programs:
            (tmp_path / program).touch(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(InputError) as refused:
            site_file.write_site("nowhere", **options)
        assert refused.value.code == code
