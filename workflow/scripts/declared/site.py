"""Read and check a site: a machine or cluster to run on, its resources, and its scheduler."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from common.cores import usable_cores
from common.errors import InputError
from common.files import CHECKOUT
from common.keys import Keys, Line, Maybe, Pairs, ParsedFrom, Rules, as_pairs, key, load, optional
from common.python import python_abi
from declared.commands import command_names
from declared.configuration import existing_file, unknown_name_error
from declared.costs import Costs
from declared.devices import GIB, Peaks, find_device
from declared.environments import (
    BASE,
    Installed,
    InstalledKeys,
    Realization,
    check_installed,
    command_environments,
    locked,
    names,
)
from declared.frameworks import framework_names
from declared.virtual import as_settings, node_names

MAX_HOSTS = 100_000  # names in a list of nodes, which can be written as ranges
# Time limit of a job beyond the time limit of its run: for Snakemake's start, the record, a slow file system.
JOB_MARGIN_S = 180
# Options of sbatch, qsub and flux batch that keys of a site or the workflow set. Snakemake's executor would
# refuse those of sbatch only when it submits a job. Options of oarsub are not listed, since it accepts
# --resource twice.
SET_OPTIONS = {
    "slurm": (
        "--partition", "--account", "--constraint", "--nodelist", "--exclude", "--mem", "--mem-per-cpu",
        "--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--gpu-bind",
        "--ntasks-per-gpu", "--cpus-per-gpu", "--cpus-per-task", "--ntasks", "--ntasks-per-node", "--nodes",
        "--time", "--job-name", "--output", "--error", "--comment", "--export", "--parsable",
        "--dependency", "--array", "--wait", "--test-only", "--requeue", "--no-requeue", "--signal",
        "--chdir", "--oversubscribe", "--exclusive", "--",
    ),
    "pbs": (
        "-l select", "-l ncpus", "-l mem", "-l walltime", "-l place", "-l nodes",
        *(f"-{letter}" for letter in "qACIJNSVehjkorvz"),
    ),
    "flux": (
        "--queue", "--bank", "--requires", "--nodes", "--nslots", "--cores-per-slot", "--gpus-per-slot",
        "--gpus-per-node", "--time-limit", "--exclusive", "--output", "--error", "--job-name", "--wrap",
        "--dry-run", "--cwd", "--dependency",
    ),
}  # fmt: skip
PLACEMENTS = {
    "local": ("emulated",),
    "slurm": ("virtual", "distinct-nodes"),
    "oar": ("virtual", "distinct-nodes"),
    "pbs": ("distinct-nodes",),
    "flux": ("distinct-nodes",),
}
# Keys of `scheduler` that a launcher does not support, with the problem and the hint of the error.
_NO_GPU_BIND = ("only Slurm binds accelerators to ranks", "remove it")
UNSUPPORTED_KEYS = {
    "oar": {"gpu_bind": _NO_GPU_BIND},
    "pbs": {
        "exclude": ("PBS cannot leave nodes out", "remove it, or name those to use in scheduler.nodelist"),
        "gpu_bind": _NO_GPU_BIND,
    },
    "flux": {
        "memory_mb": ("Flux's jobs take nodes whole, with their memory", "remove it"),
        "gpu_bind": _NO_GPU_BIND,
    },
}


MAX_GIB = 10**6
Text = Annotated[str, Rules(min_length=1)]
Word = Annotated[str, Rules(min_length=1, pattern=r"^\S+$")]
ShellLine = Annotated[str, Rules(min_length=1, pattern=r"^[^\n]+\Z")]
Cores = Annotated[float, Rules(gt=0, le=1024, exact=True)]  # CPU time of a node per second
RankVariableName = Annotated[str, Rules(pattern=r"^(?!RINGSIDE_|PYTHONHOME)[A-Z][A-Z0-9_]*\Z")]
NodeName = Annotated[
    str,
    Rules(
        "the name of one node, such as node09; scheduler.exclude has lists",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z",
    ),
]
Interface = Annotated[str, Rules(min_length=1, max_length=15, pattern=r"^[^\s/,:=^]+\Z")]
AbsolutePath = Annotated[Path, ParsedFrom(Annotated[str, Rules(pattern=r"^/[^\n]*\Z")], Path)]


@dataclass(frozen=True)
class Scheduler(Keys):
    """The key `scheduler`: what jobs request from the cluster's scheduler."""

    partition: Maybe[Word] = optional("Slurm partition, or queue of OAR, PBS or Flux; default: the cluster's")
    account: Maybe[Word] = optional("account, project or (Flux) bank to charge")
    constraint: Maybe[Text] = optional(
        "features that nodes must have (Slurm --constraint, OAR properties, Flux --requires; PBS: further "
        "resources of each chunk, such as gpu_type=a100:ib=true)"
    )
    nodelist: Maybe[Word] = optional("nodes to use, such as node[1-4]")
    exclude: Maybe[Word] = optional("nodes not to use (not with PBS)")
    memory_mb: Maybe[int] = optional(
        "memory to request on each node, MB; needed where the cluster's default is small (not with Flux)",
        ge=1,
    )
    gpu_bind: Maybe[Literal["closest"]] = optional(
        "closest: each rank sees only its own accelerators, near its cores where gres.conf says which these "
        "are (srun --gpu-bind=single:1, Slurm only); default: each rank sees all of its node and takes those "
        "of its number, so that NCCL can copy between them directly"
    )
    options: tuple[Annotated[str, Rules(pattern="^-")], ...] = key(
        "further options for sbatch, oarsub, qsub or flux batch, one per entry, such as --name=value; for "
        "qsub as -x value, such as -l filesystems=home",
        default=(),
    )
    concurrent_runs: int = key(
        "runs at the same time; several runs share the network and the file system", default=1, ge=1, le=100
    )
    build_on: Literal["login", "job"] = key(
        "where environments are built and data is prepared: on the login node or in a job", default="login"
    )
    block_limit_s: int = key(
        "time limit of an allocation, seconds (./ringside submit requests one allocation per block)",
        default=28800,
        ge=60,
    )


@dataclass(frozen=True)
class Memory(Keys):
    """The key `memory`: of devices and nodes; `./ringside plan` compares estimated demands with it."""

    device: Maybe[Text] = optional(
        "name of the accelerator in nvidia-smi or amd-smi, such as NVIDIA A100-SXM4-80GB; its memory is "
        "taken from the table of devices"
    )
    device_gib: Maybe[float] = optional(
        "memory of an accelerator, GiB, instead of the value in the table", gt=0, le=MAX_GIB
    )
    node_gib: Maybe[float] = optional(
        "memory of a node, GiB; default: scheduler.memory_mb, or with launcher local the memory of this "
        "machine",
        gt=0,
        le=MAX_GIB,
    )
    refuse: bool = key("whether runs that are estimated to need more are refused", default=True)

    @property
    def device_bytes(self) -> int | None:
        """Memory of an accelerator in bytes, None if it is not stated."""
        named = find_device(self.device) if self.device else None
        gib = self.device_gib or (named.memory_gib if named else None)
        return int(gib * GIB) if gib else None


@dataclass(frozen=True)
class Images(Keys):
    """The key `images`: how images are built and run."""

    base: Annotated[
        str,
        Rules(
            "docker://..., debootstrap, debootstrap:MIRROR or an absolute path",
            pattern=r"^(debootstrap\Z|/[^\n]*\Z|[^\n]+://[^\n]+\Z)",
        ),
    ] = key(
        "base of the images, a Debian bookworm: docker://..., debootstrap (from the mirror that apt uses), "
        "debootstrap:MIRROR, or the path of an image",
        default=BASE,
    )
    brought: Pairs[
        str,
        Annotated[str, Rules("an absolute path or docker://...", pattern=r"^(/[^\n]*\Z|[^\n]+://[^\n]+\Z)")],
    ] = key(
        "images that the site provides, as ENVIRONMENT: path or docker://...; each is copied into the "
        "cache and tested",
        default=(),
    )
    gpu: Literal["nv", "rocm"] = key(
        "with device cuda: driver of the accelerators (apptainer exec --nv or --rocm)", default="nv"
    )


def _at_home(folder: str | Path) -> Path:
    """Return `folder` with ~ resolved, if that user exists."""
    with contextlib.suppress(RuntimeError):
        return Path(folder).expanduser()
    return Path(folder)


@dataclass(frozen=True)
class Archives(Keys):
    """The key `datasets`: a folder with the archives of data sets (no downloads), or a URL to try first."""

    folder: Maybe[Annotated[Path, ParsedFrom(Annotated[str, Rules(pattern="^[/~]")], _at_home)]] = optional(
        "folder with the archives, FOLDER/DATA SET/FILE or FOLDER/FILE, such as a copy of the downloads "
        "folder of another cache; nothing is downloaded"
    )
    mirror: Maybe[str] = optional(
        "http://, https:// or file:/// address to try first, for MIRROR/DATA SET/FILE",
        pattern=r"^(https?://|file:///)[^\s]+\Z",
    )


@dataclass(frozen=True)
class Wattmeter(Keys):
    """Wattmeters of whole nodes, which are queried at an address after a run."""

    kind: Literal["kwollect"] = key("service at the address: kwollect (Grid'5000)")
    url: str = key(
        "its address without a question mark, such as https://api.grid5000.fr/stable/sites/lyon/metrics; a "
        "name and a password for it are taken from ~/.netrc",
        pattern=r"^https?://(?!.*CHANGE-ME)[^\s?#]+\Z",
    )
    metric: str = key(
        "metric with the power of a node in W", default="wattmetre_power_watt", pattern=r"^[A-Za-z0-9_]+\Z"
    )
    error_share: Maybe[float] = optional(
        "error of the wattmeters that their maker states, as a share of the power", gt=0, le=1
    )
    patience_s: float = key("seconds to wait for the samples of the end of a run", default=30, ge=0, le=600)


@dataclass(frozen=True)
class Energy(Keys):
    """The key `energy`."""

    wattmeter: Maybe[Wattmeter] = optional("wattmeters that are queried at an address")


@dataclass(frozen=True, kw_only=True)
class SiteKeys(Keys):
    """The keys of config/sites/NAME.yaml. A site names no model and no data set."""

    description: Text = key("description of the machine")
    launcher: Literal["local", "slurm", "oar", "pbs", "flux"] = key(
        "how ranks are started: local (processes on this machine), slurm (one srun for all ranks), oar (one "
        "oarsh per rank), pbs (one pbs_tmrsh per rank), flux (one Flux job for all ranks)"
    )
    placement: Literal["emulated", "virtual", "distinct-nodes"] = key(
        "what a node is: emulated (processes on one machine), virtual (a node of the virtual cluster, see "
        "./ringside cluster up), distinct-nodes (a machine of its own)"
    )
    device: Literal["cpu", "cuda"] = key("device that trains in cells with device: site")
    devices_per_node: int = key("accelerators that a run requests on each node", default=0, ge=0, le=64)
    deployment: Literal["venv", "apptainer"] = key(
        "form of the environments: venv (a folder in the cache) or apptainer (one image per environment)"
    )
    images: Images = key(
        "how images are built and run: with deployment apptainer, and for environments that exist only as "
        "images",
        default_factory=Images,
    )
    installed: Annotated[tuple[tuple[str, Any], ...], ParsedFrom(dict[str, InstalledKeys], as_pairs)] = key(
        "environments that the site has installed, outside images, as ENVIRONMENT: keys; they are tested "
        "and used unchanged",
        default=(),
    )
    scorep: Maybe[AbsolutePath] = optional(
        "folder, the same on all nodes, where Score-P is installed (its bin/ has scorep-config), built for "
        "the MPI of LBANN; with it, an installed LBANN runs under Score-P if trace is full"
    )
    binds: Annotated[
        tuple[
            Annotated[
                str, Rules("an absolute path, or two as SOURCE:INSIDE", pattern=r"^/[^:\n]*(:/[^:\n]*)?\Z")
            ],
            ...,
        ],
        Rules(unique=True),
    ] = key(
        "folders and devices of the node to bind into images, as SOURCE or SOURCE:INSIDE, such as "
        "/dev/infiniband",
        default=(),
    )
    cores: Annotated[int, Rules(ge=1)] | Literal["auto"] = key(
        "processor cores that runs may use on a node (launcher local: on the machine); auto: the cores that "
        "this process may use"
    )
    rank_cores: tuple[Annotated[int, Rules(ge=1)], ...] = key(
        "cores of each rank of a node, where they are heterogeneous (launcher local, device cpu), such as "
        "[2, 1]; without it, every rank has as many",
        default=(),
        min_length=2,
    )
    cpu_share: Maybe[Cores | Annotated[tuple[Cores, ...], Rules(min_length=2)]] = optional(
        "CPU time of one node of the virtual cluster, in cores; of heterogeneous nodes a list, as "
        "[0.9, 0.6, 0.3]: a run takes the first ones"
    )
    nodes: int = key("maximum number of nodes of a run", ge=1)
    gflops: Maybe[float] = optional(
        "training rate of one replica, in 1e9 operations per second of dense convolutions and matrix "
        "products; used only by `./ringside plan`",
        gt=0,
    )
    peak_tflops: Peaks = key(
        "dense peak by precision, TFLOP/s, for the utilization of devices: of one accelerator, over that of "
        "the table of devices; with device cpu, of all `cores` together, which have no default",
        default=(),
    )
    memory: Memory = key(
        "memory that runs have, for `./ringside plan`: of an accelerator and of a node",
        default_factory=Memory,
    )
    ranks_per_node: int = key("ranks of a distributed framework on each node", ge=1)
    interface: Interface | Annotated[tuple[Interface, ...], Rules(min_length=2, unique=True)] = key(
        "network interface that carries the gradients; of several (multi-rail) a list, such as [ib0, ib1]: "
        "NCCL, PyTorch's Gloo and Open MPI use all of them, other libraries the first"
    )
    fabric: Literal["ethernet", "infiniband"] = key(
        "network between the nodes; with infiniband, a run that fell back to TCP sockets is invalid",
        default="ethernet",
    )
    bandwidth_bytes_s: Maybe[Annotated[float, Rules(gt=0, exact=True)]] = optional(
        "rate of the interface in one direction, bytes/s; of several, together"
    )
    inside_bandwidth_bytes_s: Maybe[Annotated[float, Rules(gt=0, exact=True)]] = optional(
        "rate of a device to the others of its node in one direction, bytes/s (NVLink, PCIe), for predictions"
    )
    collective_max_bytes: int = key(
        "largest message of collective benchmarks, bytes", default=67108864, ge=1024, le=4294967296
    )
    frameworks: Maybe[Annotated[tuple[str, ...], Rules(unique=True, min_length=1)]] = optional(
        "frameworks that the site has, if not all; runs of other frameworks are listed as missing"
    )
    cache: Annotated[Path, ParsedFrom(Text, Path)] = key(
        "folder outside the checkout for environments, wheels and prepared data, visible to all nodes; the "
        "variable RINGSIDE_CACHE overrides it"
    )
    datasets: Annotated[Archives, Rules(filled=True)] = key(
        "where the site has the archives of data sets (give one of the two keys); without it, they are "
        "downloaded from the published addresses",
        default_factory=Archives,
    )
    scratch: Maybe[Annotated[Path, ParsedFrom(Annotated[str, Rules(pattern="^/")], Path)]] = optional(
        "folder on every node for the temporary files of a run, which are removed after it; default: the "
        "system's; in an image, the memory of the node"
    )
    setup: tuple[ShellLine, ...] = key(
        "shell lines that run before every rank and every build, outside images, such as: module load "
        "cuda/12",
        default=(),
    )
    variables: Pairs[RankVariableName, str] = key(
        "environment variables for every rank, such as NCCL_IB_HCA; ranks in images do not see what setup "
        "lines export. Values stand on no command line. PYTHONPATH comes after ours; RINGSIDE_* and "
        "PYTHONHOME are refused",
        default=(),
    )
    torch_index: Maybe[str] = optional(
        "URL of the index with PyTorch's own wheels, used only for what pip does not find",
        pattern="^https?://",
    )
    time_limit_s: float = key(
        "seconds after which a run is ended and recorded as timeout; if it is longer than Slurm's "
        "SlurmdTimeout, a lost node ends the job first, and the run is repeated",
        default=600,
        gt=0,
    )
    max_other_cpu_share: float = key(
        "share of the machine's CPU time that other processes may use during a run; with more, the run is "
        "invalid",
        default=0.05,
        gt=0,
        le=1,
    )
    max_steal_share: float = key(
        "CPU steal: share of CPU time that a hypervisor may give to other guests during a run; with more, "
        "the run is invalid",
        default=0.15,
        gt=0,
        le=1,
    )
    reference: bool = key(
        "whether the reference benchmark, a fixed piece of work of 0.3 s, is timed right before and right "
        "after each run, on the cores of its ranks; without it times are not adjusted, and drift is unknown",
        default=True,
    )
    wait_for_quiet: float = key(
        "maximum seconds that a run waits until the reference benchmark takes no longer than usual (in this "
        "campaign, in the same environment on as many nodes and cores); then it runs anyway",
        default=0,
        ge=0,
        le=86400,
    )
    exclude_nodes: Pairs[NodeName, Annotated[Line, Rules("the reason, as text")]] = key(
        "nodes that no job and no rank uses, each with the reason, which records of runs repeat; ./ringside "
        "nodecheck names such nodes; scheduler.exclude is for nodes without a reason",
        default=(),
    )
    energy: Annotated[Wattmeter | None, ParsedFrom(Energy, lambda energy: energy.wattmeter)] = optional(
        "meters of whole nodes that are queried after a run; counters of the nodes (NVML, AMD SMI, RAPL, "
        "Slurm) need no key"
    )
    costs: Annotated[Costs, Rules(filled=True)] = key(
        "price, grid and stated power of a node; a change redraws tables and figures, and repeats no run",
        default_factory=Costs,
    )
    scheduler: Maybe[Scheduler] = optional("what jobs request from the scheduler (not with launcher local)")


@dataclass(frozen=True, kw_only=True)
class Site(SiteKeys):
    """A machine or cluster to run on, with the settings that this process found.

    Attributes:
        python_abi: ABI of the running Python.
        installed: Installed environments, of the site and of commands, with the results of their inspection.
        cores: Number of cores; `auto` is resolved.
        interface: Network interfaces, joined by commas, as libraries read them.
        cpu_share: CPU time of a virtual node in cores; None without a limit or if nodes differ.
        cpu_shares: CPU time of each node if they differ, else empty.
    """

    name: str
    file: Path
    python_abi: str
    installed: tuple[tuple[str, Installed], ...]
    cores: int
    interface: str
    cpu_share: float | None
    cpu_shares: tuple[float, ...]
    scheduler: Scheduler

    @property
    def interfaces(self) -> list[str]:
        """The network interfaces that carry the gradients."""
        return self.interface.split(",")

    @property
    def variant(self) -> str:
        """The variant of every environment's lock that its devices need."""
        return self.device

    @property
    def realization(self) -> Realization:
        """The form that it needs environments in."""
        return Realization(
            self.deployment, self.images.base, self.images.brought, self.python_abi, self.installed
        )

    @property
    def longest_run_s(self) -> float:
        """The longest time of a run in seconds, with the wait for a quiet machine before it."""
        return self.time_limit_s + self.wait_for_quiet

    @property
    def excluded(self) -> str:
        """The list of nodes that jobs do not use: scheduler.exclude and the names in exclude_nodes."""
        return ",".join(filter(None, [self.scheduler.exclude, *dict(self.exclude_nodes)]))

    def usable_hosts(self, hosts: Iterable[str]) -> list[str]:
        """Return the hosts that exclude_nodes does not name, with or without their domains."""
        return _not_excluded(hosts, self.exclude_nodes)

    @property
    def is_heterogeneous(self) -> bool:
        """Whether its nodes, or the ranks of a node, differ in speed."""
        return bool(self.cpu_shares or self.rank_cores)

    def can_run(self, framework: str) -> bool:
        """Return whether the key `frameworks` of the site allows a framework."""
        return self.frameworks is None or framework in self.frameworks


def load_site(name: str, folder: Path = CHECKOUT / "config" / "sites") -> Site:
    """Read and check config/sites/<name>.yaml.

    Raises:
        InputError: If it is wrong; one line.
    """
    file = existing_file(folder, name, "site")
    written = load(SiteKeys, file)
    _check_environments(written, file)
    frameworks = (*framework_names(), *command_names())
    for i, framework in enumerate(written.frameworks or ()):
        if framework not in frameworks:
            raise unknown_name_error(framework, file, f"frameworks.{i}", frameworks)
    _check_together(written, file)
    shares = written.cpu_share if isinstance(written.cpu_share, tuple) else filter(None, [written.cpu_share])
    cpu_share, cpu_shares = as_settings(list(shares))
    cache, scheduler = _cache(written.cache, file), written.scheduler or Scheduler()
    if cpu_shares:  # the scheduler gives a run the first of them
        scheduler = replace(scheduler, nodelist=",".join(node_names(written.nodes)))
    # Each command's own environment is the same at all sites, unless the site has another one for it.
    all_installed = {**command_environments(), **dict(written.installed)}
    installed = tuple(
        (name, _installed(name, keys, written.setup, cache)) for name, keys in all_installed.items()
    )
    changed = {
        "cores": _cores(written),
        "interface": written.interface if isinstance(written.interface, str) else ",".join(written.interface),
        "cpu_share": cpu_share,
        "cache": cache,
        "installed": installed,
        "scheduler": scheduler,
    }
    return Site(
        name=name, file=file, python_abi=python_abi(), cpu_shares=cpu_shares, **vars(written) | changed
    )


def _cores(site: SiteKeys) -> int:
    return usable_cores() if site.cores == "auto" else site.cores


def _check_environments(site: SiteKeys, file: Path) -> None:
    """Raise InputError if an environment with an image or an installation cannot have one."""
    possible = [*names(), *command_environments()]
    for environment, source in site.images.brought:
        key = f"images.brought.{environment}"
        if environment not in names():
            raise unknown_name_error(environment, file, "images.brought", names())
        if site.deployment == "venv" and environment in locked():
            problem, hint = "with deployment venv it is built from its lock", "set deployment: apptainer"
            raise InputError("conflicting-keys", problem, file=file, key=key, got=source, hint=hint)
    for environment, keys in site.installed:
        key = f"installed.{environment}"
        if environment not in possible:
            raise unknown_name_error(environment, file, "installed", possible)
        check_installed(keys, file, key)
        if environment in dict(site.images.brought):
            problem, hint = "images.brought has it, too", "remove one of the two"
            raise InputError("conflicting-keys", problem, file=file, key=key, hint=hint)


def _installed(name: str, keys: InstalledKeys, setup: tuple[str, ...], cache: Path) -> Installed:
    """Return an installed environment with the result of its last inspection."""
    executable = keys.executable or f"{str(keys.prefix).rstrip('/')}/bin/python"
    installation = Installed(executable, keys.variables, keys.setup, (*setup, *keys.setup))
    try:
        inspection = json.loads(installation.inspection_path(cache, name).read_text(encoding="utf-8"))
        return replace(
            installation,
            content=str(inspection["content"]),
            packages=tuple(sorted(inspection["packages"].items())),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return installation


def _check_together(site: SiteKeys, file: Path) -> None:
    """Raise InputError for the first contradiction between keys."""
    for applies, code, key_name, got, problem, hint in _contradictions(site):
        if applies:
            raise InputError(code, problem, file=file, key=key_name, got=got, hint=hint)
    scheduler = site.scheduler or Scheduler()
    for i, option in enumerate(scheduler.options):
        _check_option(option, site.launcher, file, f"scheduler.options.{i}")
    for name, hosts in (("nodelist", scheduler.nodelist), ("exclude", scheduler.exclude)):
        try:
            listed = host_names(hosts or "")
        except ValueError as error:
            problem = f"'{hosts}' is not a list of nodes: {error}"
            raise InputError("bad-pattern", problem, file=file, key=f"scheduler.{name}", got=hosts) from None
        if name == "nodelist" and listed and len(listed) < site.nodes:
            problem = f"names {len(listed)} nodes, nodes is {site.nodes}"
            raise InputError("too-few", problem, file=file, key="scheduler.nodelist", got=len(listed))
    check_left_nodes(site, file, "exclude_nodes")


Contradiction = tuple[bool, str, str, object, str, str]  # applies, code, key, got, problem, hint


def _contradictions(site: SiteKeys) -> Iterator[Contradiction]:
    """Yield possible contradictions between keys, each with whether it applies."""
    launcher, placement, devices, ranks = (
        site.launcher, site.placement, site.devices_per_node, site.ranks_per_node,
    )  # fmt: skip
    impossible, out = "not-possible-here", "remove it"
    yield (
        placement not in PLACEMENTS[launcher], impossible, "placement", placement,
        f"'{placement}' is not possible with launcher {launcher}",
        f"set placement: {' or '.join(PLACEMENTS[launcher])}",
    )  # fmt: skip
    yield (
        launcher != "local" and site.cores == "auto", impossible, "cores", "auto",
        "auto is for this machine", f"with launcher {launcher} give the cores of one node",
    )  # fmt: skip
    for name in ("scheduler", "exclude_nodes"):
        yield (
            launcher == "local" and bool(getattr(site, name)), impossible, name, launcher,
            "has no meaning with launcher local", f"{out}, or set launcher: slurm",
        )  # fmt: skip
    yield (
        site.cpu_share is not None and placement != "virtual", impossible, "cpu_share", placement,
        "only nodes of the virtual cluster have one", f"{out}, or set placement: virtual",
    )  # fmt: skip
    yield (
        site.device == "cpu" and devices > 0, impossible, "devices_per_node", devices,
        "has no meaning with device cpu", out,
    )  # fmt: skip
    yield (
        site.device == "cuda" and launcher != "local" and devices < ranks, "out-of-range", "devices_per_node",
        devices, f"{devices} is less than ranks_per_node", "every rank takes one device",
    )  # fmt: skip
    accelerator = site.memory.device
    yield (
        bool(accelerator and not find_device(accelerator)), "unknown-name", "memory.device", accelerator,
        f"'{accelerator}' is not in workflow/scripts/declared/devices.yaml", "give device_gib instead",
    )  # fmt: skip
    yield (
        bool(site.wait_for_quiet) and not site.reference, "conflicting-keys", "wait_for_quiet",
        site.wait_for_quiet, "depends on the reference benchmark, which this site switches off",
        "remove reference: false, or this line",
    )  # fmt: skip
    yield (
        bool(site.datasets.folder and site.datasets.mirror), "conflicting-keys", "datasets.folder",
        str(site.datasets.folder), "has no meaning together with mirror", "remove one of the two",
    )  # fmt: skip
    if scheduler := site.scheduler:
        least_s = site.time_limit_s + site.wait_for_quiet + JOB_MARGIN_S
        yield (
            scheduler.block_limit_s < least_s, "out-of-range", "scheduler.block_limit_s",
            scheduler.block_limit_s, "is less than the time of one run",
            f"at least {least_s:g} s (time_limit_s + wait_for_quiet + {JOB_MARGIN_S})",
        )  # fmt: skip
        for name, (problem, hint) in UNSUPPORTED_KEYS.get(launcher, {}).items():
            value = getattr(scheduler, name)
            yield value is not None, impossible, f"scheduler.{name}", value, problem, hint
    yield from _heterogeneous_contradictions(site)


def _heterogeneous_contradictions(site: SiteKeys) -> Iterator[Contradiction]:
    """Yield possible contradictions between heterogeneous nodes or ranks and other keys."""
    launcher, shares, cores, ranks = site.launcher, site.cpu_share, site.rank_cores, site.ranks_per_node
    if isinstance(shares, tuple):
        yield (
            launcher != "slurm", "not-possible-here", "cpu_share", launcher,
            f"a list needs launcher slurm, which knows the nodes of each run, not {launcher}", "",
        )  # fmt: skip
        yield (
            len(shares) != site.nodes, "wrong-count", "cpu_share", len(shares),
            f"has {len(shares)} numbers, nodes is {site.nodes}", "give one number for each node",
        )  # fmt: skip
        yield (
            bool(site.scheduler and site.scheduler.nodelist), "conflicting-keys", "scheduler.nodelist", None,
            "nodes of different cpu_share are taken in their order", "remove it",
        )  # fmt: skip
    if cores:
        together, n_cores = sum(cores) * site.nodes, _cores(site)
        yield (
            launcher != "local" or site.device != "cpu", "not-possible-here", "rank_cores", launcher,
            "is for launcher local and device cpu", "remove it",
        )  # fmt: skip
        yield (
            len(cores) != ranks, "wrong-count", "rank_cores", len(cores),
            f"has {len(cores)} numbers, ranks_per_node is {ranks}", "give one number for each rank",
        )  # fmt: skip
        yield (
            together > n_cores, "out-of-range", "rank_cores", together,
            f"are {together} cores on all nodes, cores is {n_cores}", "give fewer",
        )  # fmt: skip


def check_left_nodes(site: SiteKeys, file: Path, key_name: str) -> None:
    """Raise InputError if exclude_nodes leaves fewer nodes of scheduler.nodelist than a run can need."""
    listed = host_names((site.scheduler and site.scheduler.nodelist) or "")
    left = _not_excluded(listed, site.exclude_nodes)
    if listed and len(left) < site.nodes:
        problem = f"leaves {len(left)} of {len(listed)} nodes of scheduler.nodelist, nodes is {site.nodes}"
        hint = f"name more in the list, or set nodes to {max(1, len(left))}"
        raise InputError("too-few", problem, file=file, key=key_name, got=len(left), hint=hint)


def _check_option(option: str, launcher: str, file: Path, key_name: str) -> None:
    """Raise InputError for a malformed option of the scheduler, or one that other keys set."""
    form = r"(-[A-Za-z]) ([^\s=]+)(=\S*)?" if launcher == "pbs" else r"(--[^\s=]*)()(=.*)?"
    match = re.fullmatch(form, option)
    if not match:
        expected = "-x value, such as -l filesystems=home" if launcher == "pbs" else "--name=value"
        problem = f"'{option}' is malformed"
        raise InputError("bad-pattern", problem, file=file, key=key_name, got=option, expected=expected)
    for name in (match[1], f"{match[1]} {match[2]}"):
        if name in SET_OPTIONS.get(launcher, ()):
            problem = f"{name} is set by another key of the site, or by the workflow"
            raise InputError("duplicate", problem, file=file, key=key_name, got=name, hint="remove it")


def _not_excluded(hosts: Iterable[str], exclude_nodes: Iterable[tuple[str, str]]) -> list[str]:
    excluded = {name.split(".")[0] for name, _ in exclude_nodes}
    return [host for host in hosts if host.split(".")[0] not in excluded]


def host_names(hosts: str) -> list[str]:
    """Return the names in a list of hosts in Slurm's notation.

    node[01-03,7],login gives node01, node02, node03, node7 and login.
    """
    names: list[str] = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", hosts):
        match = re.fullmatch(r"([^\[\]]+)(?:\[([\d,-]+)\]([^\[\]]*))?", entry)
        if not match:
            raise ValueError("expected names such as node1,node2 or node[1-4]")
        before, numbers, after = match.groups()
        names += [f"{before}{number}{after}" for number in _numbers(numbers)] if numbers else [before]
        if len(names) > MAX_HOSTS:
            raise ValueError(f"there are more than {MAX_HOSTS:,} names")
    return names


def _numbers(ranges: str) -> list[str]:
    """Return the numbers in ranges: 1-3,07 gives 1, 2, 3 and 07."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise ValueError(f"'{part}' is not a range of numbers")
        if int(last or first) - int(first) >= MAX_HOSTS:
            raise ValueError(f"'{part}' has more than {MAX_HOSTS:,} numbers")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def _cache(written: Path, file: Path) -> Path:
    variable = os.environ.get("RINGSIDE_CACHE")
    cache = _at_home(Path(variable or written))
    if not cache.is_absolute() or set("{}") & set(str(cache)):
        expected = "an absolute folder or one that starts with ~, without braces"
        problem = f"'{cache}' is not a valid folder"
        place = {"file": "the variable RINGSIDE_CACHE"} if variable else {"file": file, "key": "cache"}
        raise InputError("bad-pattern", problem, **place, got=str(cache), expected=expected)
    return cache
