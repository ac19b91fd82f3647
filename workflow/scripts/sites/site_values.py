"""Derive the values of a site file from the answers of Slurm and a node: pure functions that query nothing.

Every entry says where its value is from. ASSUMED values could not be measured.
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

MAX_NODES = 8  # of a run in a new site: the doctor's test job requests as many
MAX_LISTED_KINDS = 6
RUN_S, LOCAL_RUN_S, BLOCK_S = 900, 300, 28800
MIN_RUN_S = 60
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
CACHE = "~/.cache/ringside"

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A line of a site file, commented out if `stated` is false."""

    key: str
    value: Any
    source: str
    stated: bool = True


@dataclass(frozen=True)
class Section:
    """Entries with a title; `under` is the key that contains them, "" for the top level."""

    title: str
    entries: tuple[Entry, ...]
    under: str = ""


@dataclass(frozen=True)
class Kind:
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
        other_nodes: Names of all nodes but those of the first kind.
        node: `scontrol show node` of a node of the first kind.
        mine: Accounts of the user.
        default_account: The user's default account.
        mpi: Types of MPI that srun supports.
        virtual: Settings of the virtual cluster, if this is it.
    """

    config: Mapping[str, str]
    partition: Mapping[str, str]
    kinds: Sequence[Kind]
    other_nodes: str
    node: Mapping[str, str]
    mine: Sequence[str]
    default_account: str | None
    mpi: Sequence[str]
    virtual: Settings | None


@dataclass(frozen=True)
class NodeAnswers:
    """Report of a node (sites/node_report.py with `survey`), or the reason why there is none."""

    report: Report | None
    reason: str = ""

    @property
    def at(self) -> str:
        """Source of values, for comments."""
        return f"the test job on {self.report['host']}" if self.report else "ASSUMED: no node was seen"


def partition(partitions: Mapping[str, Mapping[str, str]], requested: str) -> Mapping[str, str]:
    """Return the fields of the partition `requested`, or of the cluster's default for "".

    Raises:
        InputError: If there is no such partition, it is not up, or its jobs are too short.
    """
    option, choices = "--partition", ", ".join(partitions) or "none"
    name = requested or next((name for name, row in partitions.items() if row.get("Default") == "YES"), "")
    if not name:
        hint = f"name one with --partition: {choices}"
        raise InputError("missing-key", "is absent, and Slurm has no default", file=option, hint=hint)

    if name not in partitions:
        raise InputError(
            "unknown-name",
            f"'{name}' is unknown to Slurm",
            file=option,
            got=name,
            expected=f"one of {choices}",
        )
    row = partitions[name]
    if row.get("State", "UP") != "UP":
        hint = f"wait, or name another ({choices})"
        raise InputError(
            "partition-down", f"'{name}' is {row['State']}", file=option, got=row["State"], hint=hint
        )
    max_time_s = slurm.parse_time_s(row.get("MaxTime", ""))
    if max_time_s is not None and max_time_s < MIN_RUN_S + JOB_MARGIN_S:
        expected = f"{MIN_RUN_S + JOB_MARGIN_S} s or more"
        raise InputError(
            "time-limit",
            f"'{name}' gives a job {max_time_s:g} s (MaxTime)",
            file=option,
            got=max_time_s,
            expected=expected,
            hint=f"name another ({choices})",
        )
    return row


def kinds(partition_nodes: Sequence[Node]) -> list[Kind]:
    """Group nodes into kinds, sorted by number of usable nodes, then by number of GPUs."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in partition_nodes:
        properties = (node.processors, node.memory_mb, node.gres, node.features, node.threads_per_core)
        groups.setdefault(properties, []).append(node)
    unsorted = [Kind(tuple(nodes)) for nodes in groups.values()]
    return sorted(
        unsorted,
        key=lambda kind: (
            -kind.n_usable,
            -slurm.parse_gpus(kind.nodes[0].gres)[0],
            -kind.nodes[0].processors,
        ),
    )


def cluster_site(answers: SlurmAnswers, node_answers: NodeAnswers, folder: Path) -> list[Section]:
    """Return the sections of a cluster's site.

    `folder` is the parent of the checkout, for a cache that nodes see.
    """
    option = f"--partition={answers.partition['PartitionName']}"
    kind = answers.kinds[0]
    devices, devices_why = _devices(kind, answers, node_answers)
    report = node_answers.report
    ports = [port for port in (report["ports"] if report else []) if "ACTIVE" in (port["state"] or "")]
    fabric = [port for port in ports if devices and port["layer"] == "InfiniBand"]
    words, source = _words(answers, kind, devices), f"sinfo {option}; free text"
    return [
        Section("", (Entry("description", words, source),)),
        Section(
            "How ranks are started, and what a node is.", tuple(_placement(answers, kind, devices, option))
        ),
        Section("What trains.", (*devices_why, *_processors(answers, kind, option))),
        Section("What carries the gradients.", tuple(_network(answers, node_answers, fabric, ports))),
        Section("Software.", tuple(_software(node_answers, answers, folder, bool(devices)))),
        Section("When a run has gone wrong.", tuple(_limits(answers))),
        Section("What jobs ask of Slurm.", tuple(_scheduler(answers, kind, option)), "scheduler"),
    ]


def machine_site(report: Report) -> list[Section]:
    """Return the sections of the site of this machine alone; `report` is its own."""
    devices, source = report["devices"][0] if report["accelerators"] else 0, "this machine"
    gpus = _gpu_words(report) if devices else ""
    amd = f"; its {report['amd']} AMD devices are left out: no lock here is for them" if report["amd"] else ""
    seen = f"nvidia-smi: {gpus}{_hidden_reason(report)}" if devices else f"no NVIDIA device (nvidia-smi){amd}"
    words = f"one machine with {report['processors']} processors and {_gib(report['memory_mb'])} of memory"
    nodes = (
        "one node has all devices"
        if devices
        else "ASSUMED: two nodes are emulated, as in config/sites/local.yaml"
    )
    placement = [
        Entry(
            "launcher",
            "local",
            "Slurm is not here, or was not to be asked: ranks are processes of this machine",
        ),
        Entry("placement", "emulated", "nodes are processes on one machine"),
        Entry("nodes", 1 if devices else 2, nodes),
        Entry(
            "ranks_per_node", devices or 1, "one for each device" if devices else "a default with device cpu"
        ),
    ]
    trains = [
        Entry("device", "cuda" if devices else "cpu", seen),
        *([Entry("devices_per_node", devices, seen)] if devices else []),
        Entry("cores", "auto", f"all that this process may use, of {report['processors']} processors now"),
    ]
    software = [
        *_deployment(report, source),
        Entry("cache", CACHE, "a default; RINGSIDE_CACHE overrides it"),
        *_torch(bool(devices)),
    ]
    limits = [
        Entry("time_limit_s", LOCAL_RUN_S, "ASSUMED: no run takes longer; more for large models"),
        *_disturbance_limits(),
    ]
    described = Entry("description", f"{gpus}, {words}" if gpus else words, "free text")
    return [
        Section("", (described,)),
        Section("How ranks are started, and what a node is.", tuple(placement)),
        Section("What trains.", tuple(trains)),
        Section("What carries the gradients.", (Entry("interface", "lo", "the loopback of this machine"),)),
        Section("Software.", tuple(software)),
        Section("When a run has gone wrong.", tuple(limits)),
    ]


def _words(answers: SlurmAnswers, kind: Kind, devices: int) -> str:
    node = kind.nodes[0]
    if answers.virtual:
        return (
            f"the virtual cluster of ./ringside cluster up: {answers.virtual.described()}; nodes are network "
            "namespaces on one machine"
        )
    types = "/".join(slurm.parse_gpus(node.gres)[1])
    gpus = f", {devices} GPUs{f' ({types})' if types else ''}" if devices else ""
    name = answers.config.get("ClusterName", "?")
    row = answers.partition["PartitionName"]
    return (
        f"cluster {name}, partition {row}: nodes of {node.processors} processors, "
        f"{_gib(node.memory_mb)}{gpus}"
    )


def _placement(answers: SlurmAnswers, kind: Kind, devices: int, source: str) -> list[Entry]:
    max_nodes = slurm.parse_number(answers.partition.get("MaxNodes", ""))  # a number, or UNLIMITED
    count = min(number for number in (max(kind.n_usable, 1), max_nodes) if number)
    bounded = (
        f", of which a job gets {max_nodes} (MaxNodes)" if max_nodes and max_nodes < kind.n_usable else ""
    )
    seen = f"sinfo {source}: {kind.n_usable} of {len(kind.nodes)} nodes of this kind are up{bounded}"
    if answers.virtual:
        placement = Entry(
            "placement",
            "virtual",
            "the virtual cluster of ./ringside cluster up is what runs on this machine",
        )
        nodes = Entry("nodes", answers.virtual.nodes, "the virtual cluster's settings (NODES)")
    else:
        placement = Entry(
            "placement", "distinct-nodes", "ASSUMED: each node of Slurm's is a machine of its own"
        )
        limit = (
            f"; ASSUMED: no run has more than {MAX_NODES}, which the doctor tests; raise it for a study that "
            "needs more"
        )
        nodes = Entry("nodes", min(count, MAX_NODES), seen + (limit if count > MAX_NODES else ""))
    mpi = "sinfo is on this machine" + (f"; srun --mpi=list: {', '.join(answers.mpi)}" if answers.mpi else "")
    return [
        Entry("launcher", "slurm", mpi),
        placement,
        nodes,
        Entry(
            "ranks_per_node", devices or 1, "one for each device" if devices else "a default with device cpu"
        ),
    ]


def _devices(kind: Kind, answers: SlurmAnswers, node_answers: NodeAnswers) -> tuple[int, list[Entry]]:
    """Return the number of GPUs of a node that train, and the entries about them."""
    node, report = kind.nodes[0], node_answers.report
    count, _ = slurm.parse_gpus(node.gres)
    gres = f"sinfo: gres {node.gres}"
    n_nvidia = len(report["accelerators"]) if report else None
    amd = report["amd"] if report else 0
    if count and amd and not n_nvidia:
        reason = (
            f"{gres}, but they are AMD's: no lock here is for them (images.gpu: rocm with images that you "
            "bring)"
        )
        return 0, [Entry("device", "cpu", f"{node_answers.at}: {reason}")]
    if count:
        seen = (
            f"; {node_answers.at}: {_gpu_words(report)}"
            if report and n_nvidia
            else f"; ASSUMED to be NVIDIA's: {_unseen(node_answers)}"
        )
        device = Entry("device", "cuda", gres + seen)
        if report and n_nvidia and 0 < report["devices"][0] < count:
            count, gres = report["devices"][0], f"{gres}{_hidden_reason(report)}"
        return count, [device, Entry("devices_per_node", count, gres)]
    if n_nvidia and not answers.virtual:
        reason = (
            f"{node_answers.at} sees {_gpu_words(report)}, but Slurm hands out none (gres): jobs could not "
            "ask for them"
        )
        return 0, [Entry("device", "cpu", reason)]
    return 0, [Entry("device", "cpu", "sinfo: gres none")]


def _unseen(node_answers: NodeAnswers) -> str:
    return f"nvidia-smi says nothing in {node_answers.at}" if node_answers.report else "no node was seen"


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


def _processors(answers: SlurmAnswers, kind: Kind, source: str) -> list[Entry]:
    node = kind.nodes[0]
    effective = answers.node.get("CPUEfctv", "")
    cores = (
        min(node.processors, int(effective)) if effective.isdecimal() and int(effective) else node.processors
    )
    words = f"sinfo {source}: {node.processors} CPU{'s' if node.processors > 1 else ''} a node"
    if cores < node.processors:
        words += f", of which jobs get {cores} (scontrol show node {node.name}: CPUEfctv)"
    if node.threads_per_core > 1:
        words += f"; {node.threads_per_core} hardware threads are one core, and Slurm counts threads"
    share = (list(answers.virtual.cpu_shares) or answers.virtual.cpu_share) if answers.virtual else None
    return [
        Entry("cores", cores, words),
        *(
            [
                Entry(
                    "cpu_share", share,
                    "the virtual cluster's settings (CPU): CPU time of one node, in cores"
                )
            ]
            if share else []
        ),
    ]  # fmt: skip


def interface(report: Report) -> tuple[str, str] | None:
    """Return the interface for gradients and the reason, or None: the fastest that is up and has an address.

    Among equal rates the one with the node's own address wins. A software interface, such as a bridge of
    containers, counts only if it has that address.
    """
    links, own = report["links"], report["own_address"]
    candidates = []
    for name, address in report["interfaces"].items():
        link = links.get(name, {"mbit_s": None, "up": True, "device": False})
        if address and link["up"] and not address.startswith("127.") and (link["device"] or address == own):
            candidates.append((link["mbit_s"] or 0, address == own, name))
    if not candidates:
        return None
    mbit_s, is_own, name = max(candidates, key=lambda row: row[:2])
    article = "the node's own" if is_own else "an"
    words = f"{name} {_rate_words(mbit_s)} has {article} address"
    alternatives = ", ".join(f"{link} {_rate_words(rate)}" for rate, _, link in candidates if link != name)
    assumed = "" if is_own else "; ASSUMED that all nodes reach each other by it"
    return name, f"{words}{f'; there are also {alternatives}' if alternatives else ''}{assumed}"


def _rate_words(mbit_s: int) -> str:
    return f"({mbit_s} Mbit/s)" if mbit_s else "(unknown rate)"


def _network(
    answers: SlurmAnswers,
    node_answers: NodeAnswers,
    fabric: Sequence[Mapping[str, Any]],
    ports: Sequence[Mapping[str, Any]],
) -> list[Entry]:
    report = node_answers.report
    chosen = interface(report) if report else None
    if chosen:
        name, reason = chosen[0], f"{node_answers.at}: {chosen[1]}"
    else:
        name = "eth0"
        reason = (
            f"{node_answers.at}: no interface has an address; ASSUMED"
            if report
            else f"{node_answers.at}; see `ip -brief address` on a node"
        )
    entries = [Entry("interface", name, reason)]
    port_words = ", ".join(f"{port['device']} {port['rate']} ({port['layer']})" for port in ports)
    if answers.virtual:
        entries.append(
            _bandwidth(answers.virtual.bandwidth_bytes_s, "the virtual cluster's settings (BANDWIDTH)")
        )
        return entries
    if fabric:
        entries.append(Entry("fabric", "infiniband", f"{node_answers.at}: {port_words}"))
        rate = _ib_bytes_s(fabric[0]["rate"])
        port_count = f" of one of {len(fabric)} ports" if len(fabric) > 1 else ""
        entries.append(
            _bandwidth(rate, f"{node_answers.at}: {fabric[0]['device']}, {fabric[0]['rate']}{port_count}")
        )
        devices = ",".join(port["device"] for port in fabric)
        entries.append(
            Entry("variables", {"NCCL_IB_HCA": devices}, "for all ranks; NCCL finds them by itself", False)
        )
        return entries
    reason = (
        f"{node_answers.at}: {port_words}; Gloo supports sockets only"
        if port_words
        else f"{node_answers.at}: no InfiniBand port is active"
        if report
        else node_answers.at
    )
    if any(port["layer"] == "Ethernet" for port in ports):
        reason += "; with NCCL over RoCE set infiniband, so that runs that fall back to TCP are invalid"
    entries.append(Entry("fabric", "ethernet", reason))
    mbit_s = report["links"].get(name, {}).get("mbit_s") if report else None
    entries.append(
        _bandwidth(
            mbit_s * 1e6 / 8 if mbit_s else None,
            f"{node_answers.at}: {name}{f', {mbit_s} Mbit/s' if mbit_s else ', unknown rate'}",
        )
    )
    return entries


def _bandwidth(bytes_s: float | None, source: str) -> Entry:
    if bytes_s is None:
        return Entry("bandwidth_bytes_s", 125e6, f"{source}; 125.0e+6 would be 1 Gbit/s", False)
    return Entry("bandwidth_bytes_s", bytes_s, source)


def _ib_bytes_s(rate: str | None) -> float | None:
    """Parse a rate such as 100 Gb/sec (4X EDR) into bytes/s."""
    gbit_s = re.match(r"([\d.]+) Gb/sec", rate or "")
    return float(gbit_s[1]) * 1e9 / 8 if gbit_s else None


def _software(node_answers: NodeAnswers, answers: SlurmAnswers, folder: Path, cuda: bool) -> list[Entry]:
    report = node_answers.report
    if report is None:
        cache = Entry(
            "cache", CACHE, f"{node_answers.at}; must be seen by all nodes; RINGSIDE_CACHE overrides it"
        )
    elif report["cache_seen"] or not report["checkout"]:
        seen = (
            "sees it"
            if report["cache_seen"]
            else "does NOT see it, nor the checkout: move both to a folder that nodes share"
        )
        cache = Entry("cache", CACHE, f"a default; {node_answers.at} {seen}; RINGSIDE_CACHE overrides it")
    else:
        cache = Entry(
            "cache",
            str(folder / "ringside-cache"),
            f"{node_answers.at} does not see {CACHE}, but the checkout: beside it; ASSUMED",
        )
    entries = [*_deployment(report, node_answers.at), cache]
    scratch = report["scratch_there"] if report else {}
    path, reason = (
        "/scratch",
        f"{node_answers.at} found no folder such as /scratch that can be written; the system's where absent",
    )
    if scratch:
        words = ", ".join(f"{name} ({_gib(free >> 20)} free)" for name, free in scratch.items())
        path = max(scratch, key=lambda name: scratch[name]).rpartition("=")[2]
        reason = f"{node_answers.at} can write to {words}; the system's folder where absent"
    entries.append(Entry("scratch", path, reason, False))
    modules = (report["modules"] if report else None) or []
    words = f"names {', '.join(modules[:12])}" if modules else "names no framework"
    if report and report["modules"] is None:
        words = "does not answer"
    source = f"{node_answers.at}: module avail {words}; " if report else f"{node_answers.at}; "
    line = f"module load {modules[0] if modules else 'NAME'}"
    entries.append(
        Entry("setup", [line], f"{source}the environments need no module, but GPU drivers may", False)
    )
    if "pmix" in answers.mpi:
        lbann = {"lbann": {"executable": "/opt/lbann/bin/lbann"}}
        entries.append(
            Entry("installed", lbann, "if you have LBANN: srun --mpi=list has pmix, which starts it", False)
        )
    return [*entries, *_torch(cuda)]


def _deployment(report: Report | None, source: str) -> list[Entry]:
    if report is None:
        return [Entry("deployment", "venv", f"a default; whether images would run is not known: {source}")]
    images = [
        report["apptainer"] or "Apptainer does not run without a module",
        f"user namespaces are {'there' if report['user_namespaces'] else 'refused'}",
        f"images {'are' if report['fuse'] else 'are not'} opened in place (FUSE)",
    ]
    return [
        Entry("deployment", "venv", f"a default; of images (apptainer) {source} says: {', '.join(images)}")
    ]


def _torch(cuda: bool) -> list[Entry]:
    if cuda:
        return [
            Entry(
                "torch_index", TORCH_INDEX, "with device cpu; pip's own index has the wheels for CUDA", False
            )
        ]
    return [
        Entry("torch_index", TORCH_INDEX, "a default with device cpu; asked only for what pip does not find")
    ]


def _disturbance_limits() -> list[Entry]:
    return [
        Entry(
            "max_other_cpu_share", 0.05, "a default: if other processes use more CPU time, a run is invalid"
        )
    ]


def _limits(answers: SlurmAnswers) -> list[Entry]:
    max_time_s = slurm.parse_time_s(answers.partition.get("MaxTime", ""))
    lost_s = slurm.parse_time_s(answers.config.get("SlurmdTimeout", ""))
    limit_s = min(RUN_S, int(max_time_s) - JOB_MARGIN_S if max_time_s else RUN_S)
    source = "ASSUMED: no run of yours takes longer" + (
        f"; MaxTime is {answers.partition['MaxTime']}" if max_time_s else ""
    )
    if answers.virtual and lost_s:
        limit_s = min(limit_s, int(lost_s * 5 / 6))
        source = (
            f"below SlurmdTimeout, {lost_s:g} s (scontrol show config): ASSUMED that runs on emulated nodes "
            "are short"
        )
    return [Entry("time_limit_s", limit_s, source), *_disturbance_limits()]


def account(answers: SlurmAnswers) -> tuple[str, str] | None:
    """Return the account that jobs name and the reason, or None if none is needed or known."""
    allowed = answers.partition.get("AllowAccounts", "ALL")
    usable = [name for name in answers.mine if allowed == "ALL" or name in allowed.split(",")]
    alternatives = [name for name in usable if name != answers.default_account]
    hint = f"; you may also charge {join_hosts(alternatives)}" if alternatives else ""
    if answers.default_account in usable and answers.default_account:
        return answers.default_account, f"sacctmgr: your default account{hint}"
    if usable:
        rest = f", or {join_hosts(usable[1:])}" if usable[1:] else ""
        return usable[0], f"sacctmgr: yours, and the partition allows it (AllowAccounts); ASSUMED{rest}"
    return None


def _scheduler(answers: SlurmAnswers, kind: Kind, source: str) -> list[Entry]:
    row, node = answers.partition, kind.nodes[0]
    default = "the cluster's default" if row.get("Default") == "YES" else "as requested (--partition)"
    entries = [Entry("partition", row["PartitionName"], f"scontrol show partition: {default}")]
    charged = account(answers)
    keeps_accounts = slurm.has_accounting(answers.config)
    if charged:
        entries.append(Entry("account", *charged))
    else:
        reason = (
            "sacctmgr names no account of yours that may use it"
            if keeps_accounts
            else "scontrol show config: no accounts are kept"
        )
        entries.append(Entry("account", "my-project", reason, False))
    entries.append(_selection(answers, source))
    entries.append(_memory(answers, node))
    max_time_s = slurm.parse_time_s(row.get("MaxTime", ""))
    limit_s = min(BLOCK_S, int(max_time_s)) if max_time_s else BLOCK_S
    reason = f"scontrol show partition: MaxTime {row.get('MaxTime', 'UNLIMITED')}"
    entries += [
        Entry("options", [], "a default: further options of sbatch, such as --qos=long", False),
        Entry("concurrent_runs", 1, "a default: runs do not disturb each other"),
        Entry(
            "build_on",
            "login",
            "ASSUMED: the login node reaches package indexes, and may be loaded; job otherwise",
        ),
        Entry(
            "block_limit_s",
            limit_s,
            reason + ("; a default, time of an allocation" if limit_s == BLOCK_S else ""),
        ),
    ]
    return entries


def _selection(answers: SlurmAnswers, source: str) -> Entry:
    """Return the entry that keeps jobs on nodes of the first kind."""
    kind, *other_kinds = answers.kinds
    features = kind.nodes[0].features
    if not other_kinds:
        reason = f"not needed: sinfo {source} has nodes of one kind; features {','.join(features) or 'none'}"
        return Entry("constraint", features[0] if features else "feature", reason, False)
    n_unlisted = len(other_kinds) - MAX_LISTED_KINDS
    listed = "; ".join(other_kind.describe() for other_kind in other_kinds[:MAX_LISTED_KINDS])
    left_out = f"; left out: {listed}{f'; and {n_unlisted} more kinds' if n_unlisted > 0 else ''}"
    other_features = {feature for other_kind in other_kinds for feature in other_kind.nodes[0].features}
    own = [feature for feature in features if feature not in other_features]
    if own:
        return Entry("constraint", own[0], f"sinfo {source}: the feature of this kind alone{left_out}")
    return Entry(
        "exclude", answers.other_nodes, f"sinfo {source}: no feature is of this kind alone{left_out}"
    )


def _memory(answers: SlurmAnswers, node: Node) -> Entry:
    row, config = answers.partition, answers.config
    reserved = slurm.parse_number(answers.node.get("MemSpecLimit", "")) or 0
    limits_mb = [slurm.parse_number(fields.get("MaxMemPerNode", "")) for fields in (row, config)]
    memory_mb = min(number for number in (node.memory_mb - reserved, *limits_mb) if number)
    source = f"sinfo: {node.memory_mb} MB a node" + (f", less MemSpecLimit {reserved}" if reserved else "")
    if "MEMORY" not in config.get("SelectTypeParameters", "").upper():
        return Entry(
            "memory_mb",
            memory_mb,
            f"not needed: Slurm does not ration memory (scontrol show config); {source}",
            False,
        )
    return Entry("memory_mb", memory_mb, f"{source}; Slurm rations it (SelectTypeParameters)")


def folded(names: str, listed: str) -> str:
    """Return Slurm's hostlist `listed` if it expands to the comma-separated `names`, else `names`."""
    try:
        return listed if set(host_names(listed)) == set(names.split(",")) else names
    except ValueError:
        return names


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.0f} GiB"
