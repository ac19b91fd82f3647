"""What a site file says of a cluster or a machine, made of what Slurm and a node have said: pure functions, nothing is asked here.

Every entry says where its value is from; ASSUMED is what nobody could be asked.
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
from sites.slurm import Node, hosts

MOST_NODES = 8  # that a run may have, until somebody says more: the doctor asks for as many
MOST_KINDS = 6  # that a comment lists
RUN_S, LOCAL_RUN_S, BLOCK_S = 900, 300, 28800
LEAST_RUN_S = 60
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
CACHE = "~/.cache/ringside"

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A line of a site file. Where `stated` is false it is a comment: what the key would say."""

    key: str
    value: Any
    source: str
    stated: bool = True


@dataclass(frozen=True)
class Section:
    """Some entries with a title; `under` is the key that holds them, none for the file itself."""

    title: str
    entries: tuple[Entry, ...]
    under: str = ""


@dataclass(frozen=True)
class Kind:
    """Nodes of a partition that are the same: processors, memory, generic resources, features."""

    nodes: tuple[Node, ...]

    @property
    def usable(self) -> int:
        """How many of them jobs get, now or later."""
        return sum(node.usable for node in self.nodes)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [node.name for node in self.nodes]

    def described(self) -> str:
        """In words, for a comment."""
        node = self.nodes[0]
        words = f"{node.processors} CPUs, {node.memory_mb} MB, gres {node.gres or 'none'}"
        features = f", features {','.join(node.features)}" if node.features else ""
        return f"{len(self.nodes)} x {words}{features} ({hosts(self.names)})"


@dataclass(frozen=True)
class Asked:
    """What Slurm has said. `kinds` of the partition, the largest first; `others` are the names of all but the first; `node` is one
    of the first as scontrol has it; `mine` are the
    user's accounts, none where the cluster keeps none; `virtual` is the virtual cluster, where this is it."""

    config: Mapping[str, str]
    partition: Mapping[str, str]
    kinds: Sequence[Kind]
    others: str
    node: Mapping[str, str]
    mine: Sequence[str]
    default_account: str | None
    mpi: Sequence[str]
    virtual: Settings | None


@dataclass(frozen=True)
class Looked:
    """What a node has said of itself (sites/node_report.py with `survey`); None where none did, and why."""

    report: Report | None
    why: str = ""

    @property
    def at(self) -> str:
        """Where it was looked."""
        return f"the test job on {self.report['host']}" if self.report else "ASSUMED: no node was seen"


def partition(partitions: Mapping[str, Mapping[str, str]], wanted: str) -> Mapping[str, str]:
    """The partition that is `wanted`, the cluster's default for no name. InputError where there is none, or it is not up."""
    option, there = "--partition", ", ".join(partitions) or "none"
    found = wanted if wanted else next((name for name, row in partitions.items() if row.get("Default") == "YES"), "")
    if not found:
        hint = f"name one with --partition: {there}"
        raise InputError("missing-key", "is absent, and Slurm has no default", file=option, hint=hint)
    if found not in partitions:
        raise InputError(
            "unknown-name", f"'{found}' is unknown to Slurm", file=option, got=found, expected=f"one of {there}"
        )
    row = partitions[found]
    if row.get("State", "UP") != "UP":
        hint = f"wait, or name another ({there})"
        raise InputError("partition-down", f"'{found}' is {row['State']}", file=option, got=row["State"], hint=hint)
    most_s = slurm.seconds(row.get("MaxTime", ""))
    if most_s is not None and most_s < LEAST_RUN_S + JOB_MARGIN_S:
        expected = f"{LEAST_RUN_S + JOB_MARGIN_S} s or more"
        raise InputError(
            "time-limit",
            f"'{found}' gives a job {most_s:g} s (MaxTime)",
            file=option,
            got=most_s,
            expected=expected,
            hint=f"name another ({there})",
        )
    return row


def kinds(there: Sequence[Node]) -> list[Kind]:
    """The kinds of nodes, those with most usable nodes first, of these those with most GPUs."""
    found: dict[tuple[Any, ...], list[Node]] = {}
    for node in there:
        same = (node.processors, node.memory_mb, node.gres, node.features, node.threads_per_core)
        found.setdefault(same, []).append(node)
    made = [Kind(tuple(nodes)) for nodes in found.values()]
    return sorted(made, key=lambda kind: (-kind.usable, -slurm.gpus(kind.nodes[0].gres)[0], -kind.nodes[0].processors))


def of_cluster(asked: Asked, looked: Looked, folder: Path) -> list[Section]:
    """The site of a cluster; `folder` is what holds the checkout, for a cache that nodes see."""
    where = f"--partition={asked.partition['PartitionName']}"
    kind = asked.kinds[0]
    devices, devices_why = _devices(kind, asked, looked)
    ports = _active_ports(looked.report)
    fabric = [port for port in ports if devices and port["layer"] == "InfiniBand"]
    words, source = _words(asked, kind, devices), f"sinfo {where}; correct it as you like, it changes nothing"
    return [
        Section("", (Entry("description", words, source),)),
        Section("How ranks are started, and what a node is.", tuple(_placement(asked, kind, devices, where))),
        Section("What trains.", (*devices_why, *_processors(asked, kind, where))),
        Section("What carries the gradients.", tuple(_network(asked, looked, fabric, ports))),
        Section("Software.", tuple(_software(looked, asked, folder, bool(devices)))),
        Section("When a run has gone wrong.", tuple(_limits(asked))),
        Section("What jobs ask of Slurm.", tuple(_scheduler(asked, kind, where)), "scheduler"),
    ]


def of_machine(report: Report) -> list[Section]:
    """The site of this machine alone; `report` is its own."""
    devices, where = len(report["accelerators"]), "this machine"
    gpus = _gpu_words(report) if devices else ""
    amd = f"; its {report['amd']} AMD devices are left out: no lock here is for them" if report["amd"] else ""
    seen = f"nvidia-smi: {gpus}" if devices else f"no NVIDIA device (nvidia-smi){amd}"
    words = f"one machine with {report['processors']} processors and {_gib(report['memory_mb'])} of memory"
    nodes = "one node has all devices" if devices else "ASSUMED: two nodes are emulated, as in config/sites/local.yaml"
    placement = [
        Entry("launcher", "local", "Slurm is not here, or was not to be asked: ranks are processes of this machine"),
        Entry("placement", "emulated", "nodes are processes on one machine"),
        Entry("nodes", 1 if devices else 2, nodes),
        Entry("ranks_per_node", devices or 1, "one for each device" if devices else "a default with device cpu"),
    ]
    trains = [
        Entry("device", "cuda" if devices else "cpu", seen),
        *([Entry("devices_per_node", devices, seen)] if devices else []),
        Entry("cores", "auto", f"all that this process may use, of {report['processors']} processors now"),
    ]
    software = [
        *_deployment(report, where),
        Entry("cache", CACHE, "a default; RINGSIDE_CACHE overrides it"),
        *_torch(bool(devices)),
    ]
    limits = [
        Entry("time_limit_s", LOCAL_RUN_S, "ASSUMED: no run takes longer; more for large models"),
        *_foreign(),
    ]
    described = Entry(
        "description", f"{gpus}, {words}" if gpus else words, "correct it as you like, it changes nothing"
    )
    return [
        Section("", (described,)),
        Section("How ranks are started, and what a node is.", tuple(placement)),
        Section("What trains.", tuple(trains)),
        Section("What carries the gradients.", (Entry("interface", "lo", "the loopback of this machine"),)),
        Section("Software.", tuple(software)),
        Section("When a run has gone wrong.", tuple(limits)),
    ]


def _words(asked: Asked, kind: Kind, devices: int) -> str:
    node = kind.nodes[0]
    if asked.virtual:
        return f"the virtual cluster of ./ringside cluster up: {asked.virtual.described()}; nodes are network namespaces on one machine"
    types = "/".join(slurm.gpus(node.gres)[1])
    gpus = f", {devices} GPUs{f' ({types})' if types else ''}" if devices else ""
    name = asked.config.get("ClusterName", "?")
    row = asked.partition["PartitionName"]
    return f"cluster {name}, partition {row}: nodes of {node.processors} processors, {_gib(node.memory_mb)}{gpus}"


def _placement(asked: Asked, kind: Kind, devices: int, where: str) -> list[Entry]:
    most = slurm.number(asked.partition.get("MaxNodes", ""))  # a number, or UNLIMITED
    count = min(number for number in (max(kind.usable, 1), most) if number)
    bounded = f", of which a job gets {most} (MaxNodes)" if most and most < kind.usable else ""
    seen = f"sinfo {where}: {kind.usable} of {len(kind.nodes)} nodes of this kind are up{bounded}"
    if asked.virtual:
        placement = Entry(
            "placement", "virtual", "the virtual cluster of ./ringside cluster up is what runs on this machine"
        )
        nodes = Entry("nodes", asked.virtual.nodes, "the virtual cluster's settings (NODES)")
    else:
        placement = Entry("placement", "distinct-nodes", "ASSUMED: each node of Slurm's is a machine of its own")
        more = f"; ASSUMED: no run has more than {MOST_NODES}; the doctor tries as many, so raise it for a study that needs them"
        nodes = Entry("nodes", min(count, MOST_NODES), seen + (more if count > MOST_NODES else ""))
    mpi = "sinfo is on this machine" + (f"; srun --mpi=list: {', '.join(asked.mpi)}" if asked.mpi else "")
    return [
        Entry("launcher", "slurm", mpi),
        placement,
        nodes,
        Entry("ranks_per_node", devices or 1, "one for each device" if devices else "a default with device cpu"),
    ]


def _devices(kind: Kind, asked: Asked, looked: Looked) -> tuple[int, list[Entry]]:
    """How many devices of a node train, and the lines that say so."""
    node, report = kind.nodes[0], looked.report
    count, _ = slurm.gpus(node.gres)
    gres = f"sinfo: gres {node.gres}"
    there = len(report["accelerators"]) if report else None
    amd = report["amd"] if report else 0
    if count and amd and not there:
        why = f"{gres}, but they are AMD's: no lock here is for them (images.gpu: rocm with images that you bring)"
        return 0, [Entry("device", "cpu", f"{looked.at}: {why}")]
    if count:
        seen = (
            f"; {looked.at}: {_gpu_words(report)}"
            if report and there
            else f"; ASSUMED to be NVIDIA's: {_unseen(looked)}"
        )
        return count, [Entry("device", "cuda", gres + seen), Entry("devices_per_node", count, gres)]
    if there and not asked.virtual:
        why = f"{looked.at} sees {_gpu_words(report)}, but Slurm hands out none (gres): jobs could not ask for them"
        return 0, [Entry("device", "cpu", why)]
    return 0, [Entry("device", "cpu", "sinfo: gres none")]


def _unseen(looked: Looked) -> str:
    return f"nvidia-smi says nothing in {looked.at}" if looked.report else "no node was seen"


def _gpu_words(report: Report | None) -> str:
    """2 x NVIDIA A100, driver 550.54"""
    rows = [row.rpartition(",") for row in (report["accelerators"] if report else [])]
    names = dict.fromkeys(name.strip() for name, _, _ in rows)
    drivers = dict.fromkeys(driver.strip() for _, _, driver in rows)
    return f"{len(rows)} x {' and '.join(names)}, driver {', '.join(drivers)}"


def _processors(asked: Asked, kind: Kind, where: str) -> list[Entry]:
    node = kind.nodes[0]
    effective = asked.node.get("CPUEfctv", "")
    cores = min(node.processors, int(effective)) if effective.isdecimal() and int(effective) else node.processors
    source = f"sinfo {where}: {node.processors} CPU{'s' if node.processors > 1 else ''} a node"
    if cores < node.processors:
        source += f", of which jobs get {cores} (scontrol show node {node.name}: CPUEfctv)"
    if node.threads_per_core > 1:
        source += f"; {node.threads_per_core} hardware threads are one core, and Slurm counts threads"
    share = (list(asked.virtual.cpu_shares) or asked.virtual.cpu_share) if asked.virtual else None
    return [
        Entry("cores", cores, source),
        *([Entry("cpu_share", share, "the virtual cluster's settings (CPU): processor time of one node, in cores")] if share else []),
    ]  # fmt: skip


def _active_ports(report: Report | None) -> list[Mapping[str, Any]]:
    return [port for port in (report["ports"] if report else []) if "ACTIVE" in (port["state"] or "")]


def interface(report: Report) -> tuple[str, str] | None:
    """The interface that is to carry the gradients, and why: the fastest that is up and has an address.

    Of several with one rate it is the one with the node's own address. What is only in software (bridges of containers) counts
    where it has that.
    """
    links, own = report["links"], report["own_address"]
    found = []
    for name, address in report["interfaces"].items():
        link = links.get(name, {"mbit_s": None, "up": True, "device": False})
        if address and link["up"] and not address.startswith("127.") and (link["device"] or address == own):
            found.append((link["mbit_s"] or 0, address == own, name))
    if not found:
        return None
    mbit_s, is_own, name = max(found, key=lambda row: row[:2])
    whose = "the node's own" if is_own else "an"
    words = f"{name} {_rate_words(mbit_s)} has {whose} address"
    others = ", ".join(f"{other} {_rate_words(row)}" for row, _, other in found if other != name)
    assumed = "" if is_own else "; ASSUMED that all nodes reach each other by it"
    return name, f"{words}{f'; there are also {others}' if others else ''}{assumed}"


def _rate_words(mbit_s: int) -> str:
    return f"({mbit_s} Mbit/s)" if mbit_s else "(no rate told)"


def _network(asked: Asked, looked: Looked, fabric: Sequence[Mapping[str, Any]], ports: Sequence[Mapping[str, Any]]) -> list[Entry]:  # fmt: skip
    report = looked.report
    chosen = interface(report) if report else None
    if chosen:
        name, why = chosen[0], f"{looked.at}: {chosen[1]}"
    else:
        name = "eth0"
        why = (
            f"{looked.at}: no interface has an address; ASSUMED"
            if report
            else f"{looked.at}; see `ip -brief address` on a node"
        )
    entries = [Entry("interface", name, why)]
    said = ", ".join(f"{port['device']} {port['rate']} ({port['layer']})" for port in ports)
    if asked.virtual:
        entries.append(_bandwidth(asked.virtual.bandwidth_bytes_s, "the virtual cluster's settings (BANDWIDTH)"))
        return entries
    if fabric:
        entries.append(Entry("fabric", "infiniband", f"{looked.at}: {said}"))
        rate = _ib_bytes_s(fabric[0]["rate"])
        of = f" of one of {len(fabric)} ports" if len(fabric) > 1 else ""
        entries.append(_bandwidth(rate, f"{looked.at}: {fabric[0]['device']}, {fabric[0]['rate']}{of}"))
        devices = ",".join(port["device"] for port in fabric)
        entries.append(Entry("variables", {"NCCL_IB_HCA": devices}, "for all ranks; NCCL finds them by itself", False))
        return entries
    why = (
        f"{looked.at}: {said}; Gloo knows sockets only"
        if said
        else f"{looked.at}: no InfiniBand port is active"
        if report
        else looked.at
    )
    if any(port["layer"] == "Ethernet" for port in ports):
        why += "; with NCCL over RoCE say infiniband, so that a run that fell back to TCP is told"
    entries.append(Entry("fabric", "ethernet", why))
    mbit_s = report["links"].get(name, {}).get("mbit_s") if report else None
    entries.append(_bandwidth(mbit_s * 1e6 / 8 if mbit_s else None, f"{looked.at}: {name}{f', {mbit_s} Mbit/s' if mbit_s else ' tells no rate'}"))  # fmt: skip
    return entries


def _bandwidth(bytes_s: float | None, source: str) -> Entry:
    if bytes_s is None:
        return Entry("bandwidth_bytes_s", 125e6, f"{source}; 125.0e+6 would be 1 Gbit/s", False)
    return Entry("bandwidth_bytes_s", bytes_s, source)


def _ib_bytes_s(rate: str | None) -> float | None:
    """100 Gb/sec (4X EDR) in bytes/s."""
    found = re.match(r"([\d.]+) Gb/sec", rate or "")
    return float(found[1]) * 1e9 / 8 if found else None


def _software(looked: Looked, asked: Asked, folder: Path, cuda: bool) -> list[Entry]:
    report = looked.report
    if report is None:
        cache = Entry("cache", CACHE, f"{looked.at}; must be seen by all nodes; RINGSIDE_CACHE overrides it")
    elif report["cache_seen"] or not report["checkout"]:
        seen = (
            "sees it"
            if report["cache_seen"]
            else "does NOT see it, nor the checkout: move both to a folder that nodes share"
        )
        cache = Entry("cache", CACHE, f"a default; {looked.at} {seen}; RINGSIDE_CACHE overrides it")
    else:
        cache = Entry(
            "cache",
            str(folder / "ringside-cache"),
            f"{looked.at} does not see {CACHE}, but the checkout: beside it; ASSUMED",
        )
    entries = [*_deployment(report, looked.at), cache]
    scratch = report["scratch_there"] if report else {}
    path, why = (
        "/scratch",
        f"{looked.at} found no folder such as /scratch that can be written; the system's where absent",
    )
    if scratch:
        words = ", ".join(f"{name} ({_gib(free >> 20)} free)" for name, free in scratch.items())
        path = max(scratch, key=lambda name: scratch[name]).rpartition("=")[2]
        why = f"{looked.at} can write to {words}; the system's folder where absent"
    entries.append(Entry("scratch", path, why, False))
    modules = (report["modules"] if report else None) or []
    words = f"names {', '.join(modules[:12])}" if modules else "names no framework"
    if report and report["modules"] is None:
        words = "does not answer"
    source = f"{looked.at}: module avail {words}; " if report else f"{looked.at}; "
    line = f"module load {modules[0] if modules else 'NAME'}"
    entries.append(Entry("setup", [line], f"{source}the environments need no module, but GPU drivers may", False))
    if "pmix" in asked.mpi:
        lbann = {"lbann": {"executable": "/opt/lbann/bin/lbann"}}
        entries.append(Entry("installed", lbann, "if you have LBANN: srun --mpi=list has pmix, which starts it", False))
    return [*entries, *_torch(cuda)]


def _deployment(report: Report | None, where: str) -> list[Entry]:
    if report is None:
        return [Entry("deployment", "venv", f"a default; whether images would run is not known: {where}")]
    images = [
        report["apptainer"] or "Apptainer does not run without a module",
        f"user namespaces are {'there' if report['user_namespaces'] else 'refused'}",
        f"images {'are' if report['fuse'] else 'are not'} opened in place (FUSE)",
    ]
    return [Entry("deployment", "venv", f"a default; of images (apptainer) {where} says: {', '.join(images)}")]


def _torch(cuda: bool) -> list[Entry]:
    if cuda:
        return [Entry("torch_index", TORCH_INDEX, "with device cpu; pip's own index has the wheels for CUDA", False)]
    return [Entry("torch_index", TORCH_INDEX, "a default with device cpu; asked only for what pip does not find")]


def _foreign() -> list[Entry]:
    return [Entry("max_foreign_cpu_share", 0.05, "a default: with more time of others a run is invalid")]


def _limits(asked: Asked) -> list[Entry]:
    most_s = slurm.seconds(asked.partition.get("MaxTime", ""))
    lost_s = slurm.seconds(asked.config.get("SlurmdTimeout", ""))
    limit_s = min(RUN_S, int(most_s) - JOB_MARGIN_S if most_s else RUN_S)
    source = "ASSUMED: no run of yours takes longer" + (f"; MaxTime is {asked.partition['MaxTime']}" if most_s else "")
    if asked.virtual and lost_s:
        limit_s = min(limit_s, int(lost_s * 5 / 6))
        source = (
            f"below SlurmdTimeout, {lost_s:g} s (scontrol show config): ASSUMED that runs on emulated nodes are short"
        )
    elif lost_s and limit_s >= lost_s:
        source += f"; below SlurmdTimeout ({lost_s:g} s, scontrol show config) a lost node would be told apart"
    return [Entry("time_limit_s", limit_s, source), *_foreign()]


def account(asked: Asked) -> tuple[str, str] | None:
    """The account that jobs are to name, and why; None where none is needed or known."""
    allowed = asked.partition.get("AllowAccounts", "ALL")
    usable = [name for name in asked.mine if allowed == "ALL" or name in allowed.split(",")]
    others = [name for name in usable if name != asked.default_account]
    also = f"; you may also charge {hosts(others)}" if others else ""
    if asked.default_account in usable and asked.default_account:
        return asked.default_account, f"sacctmgr: your default account{also}"
    if usable:
        rest = f", or {hosts(usable[1:])}" if usable[1:] else ""
        return usable[0], f"sacctmgr: yours, and the partition allows it (AllowAccounts); ASSUMED{rest}"
    return None


def _scheduler(asked: Asked, kind: Kind, where: str) -> list[Entry]:
    row, node = asked.partition, kind.nodes[0]
    default = "the cluster's default" if row.get("Default") == "YES" else "as asked for (PARTITION)"
    entries = [Entry("partition", row["PartitionName"], f"scontrol show partition: {default}")]
    charged = account(asked)
    kept = slurm.accounting(asked.config)
    if charged:
        entries.append(Entry("account", *charged))
    else:
        why = (
            "sacctmgr names no account of yours that may use it"
            if kept
            else "scontrol show config: no accounts are kept"
        )
        entries.append(Entry("account", "my-project", why, False))
    entries.append(_selection(asked, where))
    entries.append(_memory(asked, node))
    most_s = slurm.seconds(row.get("MaxTime", ""))
    limit_s = min(BLOCK_S, int(most_s)) if most_s else BLOCK_S
    why = f"scontrol show partition: MaxTime {row.get('MaxTime', 'UNLIMITED')}"
    entries += [
        Entry("options", [], "a default: further options of sbatch, such as --qos=long", False),
        Entry("concurrent_runs", 1, "a default: runs do not disturb each other"),
        Entry("build_on", "login", "ASSUMED: the login node reaches package indexes, and may be loaded; job otherwise"),
        Entry("block_limit_s", limit_s, why + ("; a default, time of an allocation" if limit_s == BLOCK_S else "")),
    ]
    return entries


def _selection(asked: Asked, where: str) -> Entry:
    """What keeps jobs on nodes of the first kind."""
    kind, *others = asked.kinds
    features = kind.nodes[0].features
    if not others:
        why = f"not needed: sinfo {where} has nodes of one kind; features {','.join(features) or 'none'}"
        return Entry("constraint", features[0] if features else "feature", why, False)
    more = f"; and {len(others) - MOST_KINDS} more kinds" if len(others) > MOST_KINDS else ""
    left_out = f"; left out: {'; '.join(other.described() for other in others[:MOST_KINDS])}{more}"
    theirs = {feature for other in others for feature in other.nodes[0].features}
    own = [feature for feature in features if feature not in theirs]
    if own:
        return Entry("constraint", own[0], f"sinfo {where}: the feature of this kind alone{left_out}")
    return Entry("exclude", asked.others, f"sinfo {where}: no feature is of this kind alone{left_out}")


def _memory(asked: Asked, node: Node) -> Entry:
    row, config = asked.partition, asked.config
    reserved = slurm.number(asked.node.get("MemSpecLimit", "")) or 0
    most = [slurm.number(source.get("MaxMemPerNode", "")) for source in (row, config)]
    memory_mb = min(number for number in (node.memory_mb - reserved, *most) if number)
    source = f"sinfo: {node.memory_mb} MB a node" + (f", less MemSpecLimit {reserved}" if reserved else "")
    if "MEMORY" not in config.get("SelectTypeParameters", "").upper():
        return Entry(
            "memory_mb", memory_mb, f"not needed: Slurm does not ration memory (scontrol show config); {source}", False
        )
    return Entry("memory_mb", memory_mb, f"{source}; Slurm rations it (SelectTypeParameters)")


def folded(names: str, listed: str) -> str:
    """`names`, separated by commas, as `scontrol show hostlist` writes them, where that says the same to this workflow."""
    try:
        return listed if set(host_names(listed)) == set(names.split(",")) else names
    except ValueError:
        return names


def _gib(memory_mb: int) -> str:
    return f"{memory_mb / 1024:.0f} GiB"
