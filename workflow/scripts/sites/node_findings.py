"""Judge the reports of nodes (sites/node_report.py) for `sites.doctor`: one finding per subject."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from common.files import display_path
from common.notes import Note
from declared.site import Site
from sites.findings import Finding, fail, ok, warn
from sites.slurm import join_hosts

CLOCK_WARN_S = 0.5
CLOCK_FAIL_S = 5.0

INACCESSIBLE = Note("inaccessible", "cannot access it")
NO_INFINIBAND = Note("no-infiniband", "has no InfiniBand device (/sys/class/infiniband)")
NO_APPTAINER = Note("no-apptainer", "does not run")

Report = Mapping[str, Any]


def node_findings(reports: Sequence[Report], site: Site, python: str, version: str) -> Iterator[Finding]:
    """Yield a finding about each requirement of the site's runs.

    Args:
        reports: Reports of nodes.
        site: The site.
        python: The interpreter of the controller.
        version: Its version, such as 3.11.
    """
    file = display_path(site.file)

    def check(subject: str, good: str, complaint: Callable[[Report], Note | None], advice: str) -> Finding:
        return _over_nodes(subject, good, [(report["host"], complaint(report)) for report in reports], advice)

    yield check(
        "checkout",
        "is accessible",
        lambda report: None if report["checkout"] else INACCESSIBLE,
        "move the checkout to a file system that all nodes share",
    )
    yield check(
        "controller's python",
        f"{python} runs",
        lambda report: _python(report, python, version),
        "build the checkout's .venv where nodes can access it, from a Python that they have",
    )
    yield check(
        "results",
        "can be written",
        lambda report: _not_writable("cannot write there", report["results"]),
        "results/ has to lie on a file system that all nodes share",
    )
    yield check(
        "cache",
        f"{site.cache} is accessible",
        lambda report: _cache(report, site),
        f"{file}: cache: name a folder that all nodes share, or set RINGSIDE_CACHE",
    )
    yield check(
        "interface",
        f"{site.interface} has an IPv4 address",
        lambda report: _interface(report, site),
        f"{file}: interface: name the one that carries the gradients",
    )
    yield check(
        "processors of the machine",
        f"{site.cores} or more",
        lambda report: _processors(report, site),
        f"{file}: cores: expected no more than a node has",
    )
    if site.scratch:
        yield check(
            "scratch",
            f"{site.scratch} can be written",
            lambda report: _not_writable(f"cannot write to {site.scratch}", report["scratch"]),
            f"{file}: scratch: name a folder that every node has, or remove the key",
        )
    if site.setup:
        yield check("setup", "all lines run", _setup, f"{file}: setup: correct the line")
    if site.device == "cuda":
        yield check(
            "devices",
            f"{_needed_devices(site)} or more accelerators",
            lambda report: _devices(report, site),
            f"{file}: devices_per_node is {site.devices_per_node}, ranks_per_node {site.ranks_per_node}",
        )
    if site.fabric == "infiniband":
        yield check(
            "fabric",
            "has InfiniBand devices",
            lambda report: None if report["infiniband"] else NO_INFINIBAND,
            f"{file}: fabric: set ethernet if there is none",
        )
    if site.deployment == "apptainer" or site.images.brought:
        yield check(
            "apptainer",
            "runs",
            lambda report: None if report["apptainer"] else NO_APPTAINER,
            f"{file}: load its module in setup, ask the administrators for Apptainer on the nodes, or "
            "use deployment: venv",
        )
        without_fuse = [report["host"] for report in reports if not report["fuse"]]
        yield (
            warn("fuse", "no-fuse", f"{join_hosts(without_fuse)}: /dev/fuse or squashfuse_ll is missing; "
                 "unless Apptainer is installed setuid, every rank unpacks its whole image first")
            if without_fuse
            else ok("fuse", "images are opened in place")
        )  # fmt: skip
        yield check("binds", "are there", _binds, f"{file}: binds: name folders that every node has")
    if site.launcher != "local":
        yield check_file_locks(reports)
        yield check_clocks(reports)


def check_file_locks(reports: Sequence[Report]) -> Finding:
    """Check whether a file lock of this host also holds on the nodes."""
    checked = [report for report in reports if report["results"] is None]
    without_lock = [report for report in checked if report["lock"] != "held"]
    if without_lock:
        answers = ", ".join(
            sorted({"no error" if report["lock"] == "free" else report["lock"] for report in without_lock})
        )
        hosts = [report["host"] for report in without_lock]
        return warn(
            "file locks",
            "no-file-locks",
            f"a lock held here does not hold on {join_hosts(hosts)} ({answers}); before you restart after an "
            "interruption, check with squeue --me that no job is left",
        )
    if not checked:
        return warn("file locks", "results-unseen", "no node can write to results/, so they were not checked")
    return ok("file locks", "hold across nodes")


def check_clocks(reports: Sequence[Report]) -> Finding:
    """Check whether the nodes' clocks agree with this host's; `clock_apart_s` is node minus host."""
    offsets_s = {report["host"]: report["clock_apart_s"] for report in reports}
    deviating = {host: value for host, value in offsets_s.items() if abs(value) > CLOCK_WARN_S}
    if not deviating:
        return ok("clocks", f"at most {max(map(abs, offsets_s.values()), default=0.0):.2f} s apart")
    verdict = fail if max(map(abs, deviating.values())) > CLOCK_FAIL_S else warn
    offsets = ", ".join(f"{host} {value:+.1f} s" for host, value in deviating.items())
    text = f"{offsets} against this host; Snakemake compares dates of files: set the clocks (NTP)"
    return verdict("clocks", "clocks-apart", text)


def _over_nodes(
    subject: str, good: str, complaints: Sequence[tuple[str, Note | None]], advice: str
) -> Finding:
    """Return one finding about all nodes, with the code of the first complaint; equal ones are grouped."""
    bad: dict[Note, list[str]] = {}
    for host, complaint in complaints:
        if complaint:
            bad.setdefault(complaint, []).append(host)
    if not bad:
        return ok(subject, good)
    text = "; ".join([*(f"{join_hosts(names)}: {complaint}" for complaint, names in bad.items()), advice])
    return fail(subject, next(iter(bad)).code, text)


def _not_writable(problem: str, error: str | None) -> Note | None:
    return Note("not-writable", f"{problem}: {error}") if error else None


def _python(report: Report, python: str, version: str) -> Note | None:
    if report["python"] != python:
        return Note("no-python", "cannot run it")
    node_version = report["version"]
    if node_version == version:
        return None
    text = f"it is Python {node_version} on the node, {version} on this host"
    return Note("other-python", text)


def _processors(report: Report, site: Site) -> Note | None:
    count = report["processors"]
    return Note("too-few-processors", f"has {count}") if count < site.cores else None


def _setup(report: Report) -> Note | None:
    if report["setup"] is None:
        return None
    line, error = report["setup"]
    return Note("setup-fails", f"'{line}' fails: {error}")


def _binds(report: Report) -> Note | None:
    absent = report["binds"]
    return Note("missing-folder", f"has no {', '.join(absent)}") if absent else None


def _cache(report: Report, site: Site) -> Note | None:
    if not report["cache_seen"]:
        return INACCESSIBLE
    return _not_writable("cannot write there", report["cache"]) if site.scheduler.build_on == "job" else None


def _interface(report: Report, site: Site) -> Note | None:
    interfaces = report["interfaces"]
    names = ", ".join(name if address else f"{name} (no IPv4)" for name, address in interfaces.items())
    for name in site.interfaces:
        if name not in interfaces:
            return Note("no-interface", f"has no {name}; it has {names}")
        if not interfaces[name]:
            return Note("no-address", f"{name} has no IPv4 address; it has {names}")
    return None


def _needed_devices(site: Site) -> int:
    """Return how many accelerators of a node runs use; `devices_per_node` is optional without a scheduler."""
    return max(site.devices_per_node, site.ranks_per_node)


def _devices(report: Report, site: Site) -> Note | None:
    count, error = report["devices"]
    text = f"has {count}{f' ({error})' if error else ''}"
    return Note("too-few-devices", text) if count < _needed_devices(site) else None
