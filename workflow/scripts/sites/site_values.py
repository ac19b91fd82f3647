"""Derive the values of a site file from the answers of Slurm and of a node.

The functions are pure. Every entry says where its value is from. ASSUMED values could not be measured.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from declared.site import JOB_MARGIN_S, host_names
from declared.virtual import Settings
from sites import slurm
from sites.slurm import Node, join_hosts

MAX_NODES = 8  # nodes of a run in a new site, and of the doctor's test job
MAX_LISTED_KINDS = 6
RUN_S, LOCAL_RUN_S, BLOCK_S = 900, 300, 28800
MIN_RUN_S = 60
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
CACHE = "~/.cache/ringside"

PLACEMENT_TITLE = "How ranks are started, and what a node is."
DEVICE_TITLE = "What trains."
NETWORK_TITLE = "What carries the gradients."
SOFTWARE_TITLE = "Software."
LIMITS_TITLE = "When a run has gone wrong."

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A line of a site file, commented out if `stated` is false."""

    key: str
    value: Any
    source: str
    stated: bool = True


DISTURBANCE_LIMIT = Entry(
    "max_other_cpu_share", 0.05, "a default: if other processes use more, a run is invalid"
)


@dataclass(frozen=True)
class Section:
    """Entries with a title; `under` is the key that contains them, "" for the top level."""

    title: str
    entries: tuple[Entry, ...]
    under: str = ""


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a partition with equal CPUs, memory, generic resources and features."""

    nodes: tuple[Node, ...]

    @property
    def n_usable(self) -> int:
        """Number of nodes that jobs get, now or later."""
        return sum(node.is_usable for node in self.nodes)

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [node.name for node in self.nodes]

    def describe(self) -> str:
        """Describe the kind for a comment."""
        node = self.nodes[0]
        words = f"{node.processors} CPUs, {node.memory_mb} MB, gres {node.gres or 'none'}"
        features = f", features {','.join(node.features)}" if node.features else ""
        return f"{len(self.nodes)} x {words}{features} ({join_hosts(self.names)})"


@dataclass(frozen=True)
class SlurmAnswers:
    """Answers of Slurm.

    Attributes:
        config: `scontrol show config`.
        partition: `scontrol show partition`.
        kinds: Kinds of nodes of the partition, the largest first.
        other_nodes: Names of all nodes except those of the first kind.
        node: `scontrol show node` of a node of the first kind.
        mine: Accounts of the user.
        default_account: The user's default account.
        mpi: Types of MPI that srun supports.
        virtual: Settings of the virtual cluster if it is this cluster, else None.
    """

    config: Mapping[str, str]
    partition: Mapping[str, str]
    kinds: Sequence[NodeKind]
    other_nodes: str
    node: Mapping[str, str]
    mine: Sequence[str]
    default_account: str | None
    mpi: Sequence[str]
    virtual: Settings | None


@dataclass(frozen=True)
class NodeAnswers:
    """Report of a node (sites/node_report.py with `survey`), or the reason why there is no report."""

    report: Report | None
    reason: str = ""

    @property
    def at(self) -> str:
        """Text that names the source of values in comments."""
        return f"the test job on {self.report['host']}" if self.report else "ASSUMED: no node was seen"


def usable_partition(partitions: Mapping[str, Mapping[str, str]], requested: str) -> Mapping[str, str]:
    """Return the fields of the partition `requested`, or of the cluster's default for "".

    Raises:
        InputError: If there is no such partition, it is not up, or its time limit is too short for a run.
    """
    row = slurm.choose_partition(partitions, requested, "--partition")
    max_time_s = slurm.parse_time_s(row.get("MaxTime", ""))
    if max_time_s is not None and max_time_s < MIN_RUN_S + JOB_MARGIN_S:
        problem = f"'{row['PartitionName']}' gives a job {max_time_s:g} s (MaxTime)"
        expected = f"{MIN_RUN_S + JOB_MARGIN_S} s or more"
        raise InputError("time-limit", problem, file="--partition", got=max_time_s, expected=expected)
    return row


def group_nodes(partition_nodes: Sequence[Node]) -> list[NodeKind]:
    """Group nodes into kinds, sorted by number of usable nodes, then by number of GPUs."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in partition_nodes:
        properties = (node.processors, node.memory_mb, node.gres, node.features, node.threads_per_core)
        groups.setdefault(properties, []).append(node)
    return sorted(
        (NodeKind(tuple(nodes)) for nodes in groups.values()),
        key=lambda kind: (
            -kind.n_usable,
            -slurm.parse_gpus(kind.nodes[0].gres)[0],
            -kind.nodes[0].processors,
        ),
    )


def cluster_site(answers: SlurmAnswers, node_answers: NodeAnswers, folder: Path) -> list[Section]:
    """Return the sections of a cluster's site file.

    `folder` is the parent of the checkout, where the cache lies if nodes cannot access the default one.
    """
    option = f"--partition={answers.partition['PartitionName']}"
    kind = answers.kinds[0]
    devices, device_entries = _devices(kind, answers, node_answers)
    report = node_answers.report
    ports = [port for port in (report["ports"] if report else []) if "ACTIVE" in (port["state"] or "")]
    fabric = [port for port in ports if devices and port["layer"] == "InfiniBand"]
    placement = _placement(answers, kind, devices, option)
    software = _software(node_answers, answers, folder, bool(devices))
    words = _words(answers, kind, devices)
    return [
        Section("", (Entry("description", words, f"sinfo {option}; free text"),)),
        Section(PLACEMENT_TITLE, tuple(placement)),
        Section(DEVICE_TITLE, (*device_entries, *_processors(answers, kind, option))),
        Section(NETWORK_TITLE, tuple(_network(answers, node_answers, fabric, ports))),
        Section(SOFTWARE_TITLE, tuple(software)),
        Section(LIMITS_TITLE, tuple(_limits(answers))),
        Section("What jobs ask of Slurm.", tuple(_scheduler(answers, kind, option)), "scheduler"),
    ]


def machine_site(report: Report) -> list[Section]:
    """Return the sections of a site file for this machine alone, from its report."""
    devices, source = report["devices"][0] if report["accelerators"] else 0, "this machine"
    gpus = _gpu_words(report) if devices else ""
    amd = f"; its {report['amd']} AMD devices are left out: no lock here is for them" if report["amd"] else ""
    seen = f"nvidia-smi: {gpus}{_hidden_reason(report)}" if devices else f"no NVIDIA device (nvidia-smi){amd}"
    words = f"one machine with {report['processors']} processors and {_gib(report['memory_mb'])} of memory"
    nodes = "one node has all devices" if devices else "ASSUMED: emulated, as in config/sites/local.yaml"
    trains = [
        Entry("device", "cuda" if devices else "cpu", seen),
        *([Entry("devices_per_node", devices, seen)] if devices else []),
        Entry("cores", "auto", f"all that this process may use, of {report['processors']} processors now"),
    ]
    return [
        Section("", (Entry("description", f"{gpus}, {words}" if gpus else words, "free text"),)),
        Section(
            PLACEMENT_TITLE,
            (
                Entry("launcher", "local", "without Slurm: ranks are processes of this machine"),
                Entry("placement", "emulated", "nodes are processes on one machine"),
                Entry("nodes", 1 if devices else 2, nodes),
                _ranks_per_node(devices),
            ),
        ),
        Section(DEVICE_TITLE, tuple(trains)),
        Section(NETWORK_TITLE, (Entry("interface", "lo", "the loopback of this machine"),)),
        Section(
            SOFTWARE_TITLE,
            (
                _deployment(report, source),
                Entry("cache", CACHE, "a default; RINGSIDE_CACHE overrides it"),
                _torch(bool(devices)),
            ),
        ),
        Section(
            LIMITS_TITLE,
            (
                Entry("time_limit_s", LOCAL_RUN_S, "ASSUMED: no run takes longer; more for large models"),
                DISTURBANCE_LIMIT,
            ),
        ),
    ]


def _ranks_per_node(devices: int) -> Entry:
    source = "one for each device" if devices else "a default with device cpu"
    return Entry("ranks_per_node", devices or 1, source)


def _words(answers: SlurmAnswers, kind: NodeKind, devices: int) -> str:
    node = kind.nodes[0]
    if answers.virtual:
        return f"the virtual cluster of ./ringside cluster up: {answers.virtual.described()}"
    types = "/".join(slurm.parse_gpus(node.gres)[1])
    gpus = f", {devices} GPUs{f' ({types})' if types else ''}" if devices else ""
    return (
        f"cluster {answers.config.get('ClusterName', '?')}, partition {answers.partition['PartitionName']}: "
        f"nodes of {node.processors} processors, {_gib(node.memory_mb)}{gpus}"
    )


def _placement(answers: SlurmAnswers, kind: NodeKind, devices: int, source: str) -> list[Entry]:
    max_nodes = slurm.parse_number(answers.partition.get("MaxNodes", ""))  # a number, or UNLIMITED
    count = min(number for number in (max(kind.n_usable, 1), max_nodes, MAX_NODES) if number)
    seen = f"sinfo {source}: {kind.n_usable} of {len(kind.nodes)} nodes of this kind are up"
    if max_nodes:
        seen += f", a job gets {max_nodes} (MaxNodes)"
    if count == MAX_NODES:
        seen += f"; ASSUMED: no run has more than {MAX_NODES}, which the doctor tests"
    placement = Entry("placement", "distinct-nodes", "ASSUMED: each node of Slurm's is a machine of its own")
    nodes = Entry("nodes", count, seen)
    if answers.virtual:
        placement = Entry("placement", "virtual", "./ringside cluster up runs on this machine")
        nodes = Entry("nodes", answers.virtual.nodes, "the virtual cluster's settings (NODES)")
    mpi = "sinfo is on this machine" + (f"; srun --mpi=list: {', '.join(answers.mpi)}" if answers.mpi else "")
    return [Entry("launcher", "slurm", mpi), placement, nodes, _ranks_per_node(devices)]


def _devices(kind: NodeKind, answers: SlurmAnswers, node_answers: NodeAnswers) -> tuple[int, list[Entry]]:
    """Return the number of GPUs of a node that train, and the entries about them."""
    report, at = node_answers.report, node_answers.at
    count, _ = slurm.parse_gpus(kind.nodes[0].gres)
    gres = f"sinfo: gres {kind.nodes[0].gres or 'none'}"
    n_nvidia, amd = (len(report["accelerators"]), report["amd"]) if report else (0, 0)
    if not count and n_nvidia and not answers.virtual:
        reason = f"{at} sees {_gpu_words(report)}, but Slurm allocates none (gres)"
        return 0, [Entry("device", "cpu", reason)]
    if count and amd and not n_nvidia:
        reason = f"{at}: {gres}, but they are AMD's: images of your own can use them (images.gpu: rocm)"
        return 0, [Entry("device", "cpu", reason)]
    if not count:
        return 0, [Entry("device", "cpu", gres)]
    seen = f"{at}: {_gpu_words(report)}" if n_nvidia else f"ASSUMED to be NVIDIA's: {at} shows none"
    device = Entry("device", "cuda", f"{gres}; {seen}")
    if report and n_nvidia and 0 < report["devices"][0] < count:
        count, gres = report["devices"][0], f"{gres}{_hidden_reason(report)}"
    return count, [device, Entry("devices_per_node", count, gres)]


def _gpu_words(report: Report | None) -> str:
    """Describe the GPUs, such as 2 x NVIDIA A100, driver 550.54."""
    rows = [row.rpartition(",") for row in (report["accelerators"] if report else [])]
    names = dict.fromkeys(name.strip() for name, _, _ in rows)
    drivers = dict.fromkeys(driver.strip() for _, _, driver in rows)
    return f"{len(rows)} x {' and '.join(names)}, driver {', '.join(drivers)}"


def _hidden_reason(report: Report) -> str:
    """Return why programs see fewer GPUs than a node has, such as `; MIG: a program sees one of 7 parts`."""
    reason = report["devices"][1]
    return f"; {reason}" if reason else ""


def _processors(answers: SlurmAnswers, kind: NodeKind, source: str) -> list[Entry]:
    node = kind.nodes[0]
    cores = min(node.processors, slurm.parse_number(answers.node.get("CPUEfctv", "")) or node.processors)
    words = f"sinfo {source}: {node.processors} CPU{'s' if node.processors > 1 else ''} a node"
    if cores < node.processors:
        words += f", of which jobs get {cores} (scontrol show node {node.name}: CPUEfctv)"
    if node.threads_per_core > 1:
        words += f"; {node.threads_per_core} hardware threads are one core, and Slurm counts threads"
    entries = [Entry("cores", cores, words)]
    if answers.virtual and (share := list(answers.virtual.cpu_shares) or answers.virtual.cpu_share):
        entries.append(Entry("cpu_share", share, "the virtual cluster's settings (CPU)"))
    return entries


def choose_interface(report: Report) -> tuple[str, str] | None:
    """Return the interface for gradients and the reason, or None: the fastest that is up and has an address.

    Of interfaces with equal rates, the one with the address of the node's name is chosen. A software
    interface, such as a bridge of containers, counts only if it has that address.
    """
    links, node_address = report["links"], report["own_address"]
    candidates = []
    for name, address in report["interfaces"].items():
        link = links.get(name, {"mbit_s": None, "up": True, "device": False})
        if (
            address
            and link["up"]
            and not address.startswith("127.")
            and (link["device"] or address == node_address)
        ):
            candidates.append((link["mbit_s"] or 0, address == node_address, name))
    if not candidates:
        return None
    _, is_node_address, name = max(candidates, key=lambda row: row[:2])
    rates = [f"{link} ({rate} Mbit/s)" if rate else f"{link} (unknown rate)" for rate, _, link in candidates]
    assumed = "" if is_node_address else "; ASSUMED that all nodes reach each other by it"
    return name, f"the fastest of {', '.join(rates)}{assumed}"


def _network(
    answers: SlurmAnswers,
    node_answers: NodeAnswers,
    fabric: Sequence[Mapping[str, Any]],
    ports: Sequence[Mapping[str, Any]],
) -> list[Entry]:
    report, at = node_answers.report, node_answers.at
    name, reason = "eth0", "ASSUMED; see `ip -brief address` on a node"
    if report and (chosen := choose_interface(report)):
        name, reason = chosen
    entries = [Entry("interface", name, f"{at}: {reason}")]
    if answers.virtual:
        rate = answers.virtual.bandwidth_bytes_s
        return [*entries, _bandwidth(rate, "the virtual cluster's settings (BANDWIDTH)")]
    port_words = ", ".join(f"{port['device']} {port['rate']} ({port['layer']})" for port in ports)
    if fabric:
        # A rate is for example 100 Gb/sec (4X EDR).
        gbit_s = re.match(r"([\d.]+) Gb/sec", fabric[0]["rate"] or "")
        devices = ",".join(port["device"] for port in fabric)
        return [
            *entries,
            Entry("fabric", "infiniband", f"{at}: {port_words}"),
            _bandwidth(float(gbit_s[1]) * 1e9 / 8 if gbit_s else None, f"{at}: one port, {port_words}"),
            Entry("variables", {"NCCL_IB_HCA": devices}, "for all ranks; NCCL finds them by itself", False),
        ]
    reason = f"{at}: {port_words or 'no InfiniBand port is active'}; Gloo supports sockets only"
    if any(port["layer"] == "Ethernet" for port in ports):
        reason += "; with NCCL over RoCE set infiniband, so that runs that fall back to TCP are invalid"
    mbit_s = report["links"].get(name, {}).get("mbit_s") if report else None
    return [
        *entries,
        Entry("fabric", "ethernet", reason),
        _bandwidth(mbit_s * 1e6 / 8 if mbit_s else None, f"{at}: {name}, {mbit_s or '?'} Mbit/s"),
    ]


def _bandwidth(bytes_s: float | None, source: str) -> Entry:
    if bytes_s is None:
        return Entry("bandwidth_bytes_s", 125e6, f"{source}; 125.0e+6 would be 1 Gbit/s", False)
    return Entry("bandwidth_bytes_s", bytes_s, source)


def _software(node_answers: NodeAnswers, answers: SlurmAnswers, folder: Path, cuda: bool) -> list[Entry]:
    report, at = node_answers.report, node_answers.at
    cache = Entry("cache", CACHE, f"{at}; all nodes must be able to access it; RINGSIDE_CACHE overrides it")
    if report and not report["cache_seen"]:
        reason = f"{at} can NOT access {CACHE}; ASSUMED: it can access this folder next to the checkout"
        cache = Entry("cache", str(folder / "ringside-cache"), reason)
    free_bytes = report["scratch_there"] if report else {}
    words = ", ".join(f"{name} ({_gib(free >> 20)} free)" for name, free in free_bytes.items())
    scratch = max(free_bytes, key=lambda name: free_bytes[name], default="/scratch").rpartition("=")[2]
    modules = (report["modules"] if report else None) or ["NAME"]
    entries = [
        _deployment(report, at),
        cache,
        Entry("scratch", scratch, f"{at} can write to {words or 'no such folder'}; a default: none", False),
        Entry(
            "setup",
            [f"module load {modules[0]}"],
            f"{at}: module avail names {', '.join(modules[:12])}; GPU drivers may need one",
            False,
        ),
    ]
    if "pmix" in answers.mpi:
        lbann = {"lbann": {"executable": "/opt/lbann/bin/lbann"}}
        entries.append(Entry("installed", lbann, "if you have LBANN: srun --mpi=list has pmix", False))
    return [*entries, _torch(cuda)]


def _deployment(report: Report | None, source: str) -> Entry:
    if report is None:
        return Entry("deployment", "venv", f"a default; whether images would run is not known: {source}")
    images = [
        report["apptainer"] or "Apptainer does not run without a module",
        f"user namespaces are {'there' if report['user_namespaces'] else 'refused'}",
        f"images {'are' if report['fuse'] else 'are not'} opened in place (FUSE)",
    ]
    return Entry("deployment", "venv", f"a default; of images (apptainer) {source} says: {', '.join(images)}")


def _torch(cuda: bool) -> Entry:
    reason = (
        "with device cpu; pip's own index has the wheels for CUDA" if cuda else "a default with device cpu"
    )
    return Entry("torch_index", TORCH_INDEX, reason, not cuda)


def _limits(answers: SlurmAnswers) -> list[Entry]:
    max_time_s = slurm.parse_time_s(answers.partition.get("MaxTime", ""))
    lost_s = slurm.parse_time_s(answers.config.get("SlurmdTimeout", ""))
    limit_s = min(RUN_S, int(max_time_s) - JOB_MARGIN_S if max_time_s else RUN_S)
    source = (
        f"ASSUMED: no run of yours takes longer; MaxTime is {answers.partition.get('MaxTime', 'UNLIMITED')}"
    )
    if answers.virtual and lost_s:
        limit_s = min(limit_s, int(lost_s * 5 / 6))
        source = f"below SlurmdTimeout, {lost_s:g} s: ASSUMED that runs on emulated nodes are short"
    return [Entry("time_limit_s", limit_s, source), DISTURBANCE_LIMIT]


def choose_account(answers: SlurmAnswers) -> tuple[str, str] | None:
    """Return the account of jobs and the reason for it, or None if none is needed or known."""
    allowed = answers.partition.get("AllowAccounts", "ALL")
    usable = [name for name in answers.mine if allowed == "ALL" or name in allowed.split(",")]
    if not usable:
        return None
    if answers.default_account in usable and answers.default_account:
        return answers.default_account, f"sacctmgr: your default among {join_hosts(usable)}"
    reason = f"sacctmgr: ASSUMED, the first of yours that may use the partition: {join_hosts(usable)}"
    return usable[0], reason


def _scheduler(answers: SlurmAnswers, kind: NodeKind, source: str) -> list[Entry]:
    row = answers.partition
    default = "the cluster's default" if row.get("Default") == "YES" else "as requested (--partition)"
    charged = choose_account(answers)
    no_account = "sacctmgr names no account of yours that may use it, or no accounts are kept"
    max_time_s = slurm.parse_time_s(row.get("MaxTime", ""))
    limit_s = min(BLOCK_S, int(max_time_s)) if max_time_s else BLOCK_S
    max_time = f"a default, at most MaxTime {row.get('MaxTime', 'UNLIMITED')} (scontrol show partition)"
    return [
        Entry("partition", row["PartitionName"], f"scontrol show partition: {default}"),
        Entry("account", *charged) if charged else Entry("account", "my-project", no_account, False),
        _selection(answers, source),
        _memory(answers, kind.nodes[0]),
        Entry("options", [], "a default: further options of sbatch, such as --qos=long", False),
        Entry("concurrent_runs", 1, "a default: runs do not disturb each other"),
        Entry("build_on", "login", "ASSUMED: the login node reaches package indexes; job otherwise"),
        Entry("block_limit_s", limit_s, max_time),
    ]


def _selection(answers: SlurmAnswers, source: str) -> Entry:
    """Return the entry that restricts jobs to nodes of the first kind."""
    kind, *other_kinds = answers.kinds
    features = kind.nodes[0].features
    if not other_kinds:
        reason = f"not needed: sinfo {source} has nodes of one kind; features {','.join(features) or 'none'}"
        return Entry("constraint", features[0] if features else "feature", reason, False)
    listed = "; ".join(other_kind.describe() for other_kind in other_kinds[:MAX_LISTED_KINDS])
    if len(other_kinds) > MAX_LISTED_KINDS:
        listed += f"; and {len(other_kinds) - MAX_LISTED_KINDS} more kinds"
    other_features = {feature for other_kind in other_kinds for feature in other_kind.nodes[0].features}
    for feature in features:
        if feature not in other_features:
            reason = f"sinfo {source}: this feature is unique to this kind; left out: {listed}"
            return Entry("constraint", feature, reason)
    reason = f"sinfo {source}: no feature is unique to this kind; left out: {listed}"
    return Entry("exclude", answers.other_nodes, reason)


def _memory(answers: SlurmAnswers, node: Node) -> Entry:
    row, config = answers.partition, answers.config
    reserved = slurm.parse_number(answers.node.get("MemSpecLimit", "")) or 0
    limits_mb = [slurm.parse_number(fields.get("MaxMemPerNode", "")) for fields in (row, config)]
    memory_mb = min(number for number in (node.memory_mb - reserved, *limits_mb) if number)
    is_rationed = slurm.rations_memory(config)
    source = f"sinfo: {node.memory_mb} MB a node" + (f", less MemSpecLimit {reserved}" if reserved else "")
    need = "Slurm rations it" if is_rationed else "not needed: Slurm does not ration memory"
    return Entry("memory_mb", memory_mb, f"{source}; {need} (SelectTypeParameters)", is_rationed)


def folded(names: str, listed: str) -> str:
    """Return Slurm's hostlist `listed` if it expands to the comma-separated `names`, else `names`."""
    try:
        return listed if set(host_names(listed)) == set(names.split(",")) else names
    except ValueError:
        return names


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.0f} GiB"
