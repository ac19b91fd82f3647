"""Read and check a site: one place to run, its resources, and its scheduler."""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Protocol
from urllib.parse import urlsplit

from common.cores import usable_cores
from common.errors import InputError
from common.files import CHECKOUT
from common.python import python_abi
from common.written import Keys, Line, Maybe, Pairs, Rules, Written, as_pairs, key, load, optional
from declared.commands import command_names
from declared.configuration import existing
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
from declared.frameworks import framework_names, unknown_name_error
from declared.virtual import as_settings, node_names

MAX_HOSTS = 100_000  # in a list of nodes, which is written as ranges
WORKFLOWS_OWN = (
    "--job-name", "--output", "--error", "--comment", "--export", "--parsable", "--dependency", "--array",
    "--wait",
    "--test-only", "--requeue", "--no-requeue", "--signal", "--chdir", "--oversubscribe", "--exclusive", "--",
)  # fmt: skip
JOB_MARGIN_S = 180  # of a job's limit over its run's: Snakemake's start, the record, a slow file system
# Options of sbatch, qsub and flux batch that other keys say: the executor refuses sbatch's when a job is
# submitted. oarsub's are not listed: it takes --resource more than once (moldable jobs).
OPTION_KEYS = {
    "slurm": {
        "--partition": "scheduler.partition",
        "--account": "scheduler.account",
        "--constraint": "scheduler.constraint",
        "--nodelist": "scheduler.nodelist",
        "--exclude": "scheduler.exclude",
        "--mem": "scheduler.memory_mb",
        "--mem-per-cpu": "scheduler.memory_mb",
        "--gres": "devices_per_node",
        "--gpus": "devices_per_node",
        "--gpus-per-node": "devices_per_node",
        "--gpus-per-task": "devices_per_node",
        "--gpus-per-socket": "devices_per_node",
        "--gpu-bind": "scheduler.gpu_bind",
        "--ntasks-per-gpu": "devices_per_node",
        "--cpus-per-gpu": "devices_per_node",
        "--cpus-per-task": "cores",
        "--ntasks": "ranks_per_node",
        "--ntasks-per-node": "ranks_per_node",
        "--nodes": "nodes",
        "--time": "time_limit_s",
    }
    | dict.fromkeys(WORKFLOWS_OWN, "the workflow itself"),
    "pbs": {
        "-q": "scheduler.partition",
        "-A": "scheduler.account",
        "-l select": "nodes, cores, ranks_per_node and scheduler.constraint",
        "-l ncpus": "cores",
        "-l mem": "scheduler.memory_mb",
        "-l walltime": "time_limit_s",
    }
    | dict.fromkeys(("-l place", "-l nodes", *(f"-{x}" for x in "CIJNSVehjkorvz")), "the workflow itself"),
    "flux": {
        "--queue": "scheduler.partition",
        "--bank": "scheduler.account",
        "--requires": "scheduler.constraint",
        "--nodes": "nodes",
        "--nslots": "nodes",
        "--cores-per-slot": "cores",
        "--gpus-per-slot": "devices_per_node",
        "--gpus-per-node": "devices_per_node",
        "--time-limit": "time_limit_s",
    }
    | dict.fromkeys(
        ("--exclusive", "--output", "--error", "--job-name", "--wrap", "--dry-run", "--cwd", "--dependency"),
        "the workflow itself",
    ),
}
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RESOURCES = re.compile(r"[A-Za-z]\w*=[^\s:]+(:[A-Za-z]\w*=[^\s:]+)*")  # of a chunk of PBS's, beside ours
PLACEMENTS = {
    "local": ("emulated",),
    "slurm": ("virtual", "distinct-nodes"),
    "oar": ("virtual", "distinct-nodes"),
    "pbs": ("distinct-nodes",),
    "flux": ("distinct-nodes",),
}
# Keys of `scheduler` that a launcher has no word for, with what to do instead.
_NO_GPU_BIND = ("only Slurm binds accelerators to ranks", "take it out")
UNSUPPORTED_KEYS = {
    "oar": {"gpu_bind": _NO_GPU_BIND},
    "pbs": {
        "exclude": ("PBS cannot leave nodes out", "take it out, or name those to use in scheduler.nodelist"),
        "gpu_bind": _NO_GPU_BIND,
    },
    "flux": {
        "memory_mb": ("Flux's jobs take nodes whole, with their memory", "take it out"),
        "gpu_bind": _NO_GPU_BIND,
    },
}


MAX_GIB = 10**6
Text = Annotated[str, Rules(min_length=1)]
Word = Annotated[str, Rules(min_length=1, pattern=r"^\S+$")]
ShellLine = Annotated[str, Rules(min_length=1, pattern=r"^[^\n]+\Z")]
Cores = Annotated[float, Rules(gt=0, le=1024, exact=True)]  # CPU time of a node
SHELL_VARIABLES = (
    *(
        "UID",
        "EUID",
        "PPID",
        "GROUPS",
        "SHELLOPTS",
        "BASHOPTS",
        "BASH_VERSINFO",
        "DIRSTACK",
        "FUNCNAME",
        "HISTCMD",
    ),
    *("LINENO", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME"),
)
RankVariableName = Annotated[
    str, Rules(pattern=rf"^(?!RINGSIDE_|PYTHONHOME|(?:{'|'.join(SHELL_VARIABLES)})\Z)[A-Z][A-Z0-9_]*\Z")
]
Interface = Annotated[str, Rules(min_length=1, max_length=15, pattern=r"^[^\s/,:=^]+\Z")]
AbsolutePath = Annotated[Path, Written(Annotated[str, Rules(pattern=r"^/[^\n]*\Z")], Path)]


@dataclass(frozen=True)
class Scheduler(Keys):
    """What jobs request from the cluster's scheduler."""

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
        "further options for sbatch, oarsub, qsub or flux batch, one per entry, as --name=value; for qsub "
        "as -x value, such as -l filesystems=home",
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
    """Memory that runs have, which `./ringside plan` compares with what they need."""

    device: Maybe[Text] = optional(
        "accelerator, as nvidia-smi or amd-smi names it, such as NVIDIA A100-SXM4-80GB: its memory is that "
        "of the table of devices"
    )
    device_gib: Maybe[float] = optional(
        "memory of an accelerator, GiB, in place of the table's", gt=0, le=MAX_GIB
    )
    node_gib: Maybe[float] = optional(
        "memory of a node, GiB; default: scheduler.memory_mb, or that of this machine with launcher local",
        gt=0,
        le=MAX_GIB,
    )
    refuse: bool = key("whether runs that need more, as estimated, are refused", default=True)

    @property
    def device_bytes(self) -> int | None:
        """Memory of an accelerator in bytes, None if it is not stated."""
        named = find_device(self.device) if self.device else None
        gib = self.device_gib or (named.memory_gib if named else None)
        return int(gib * GIB) if gib else None


@dataclass(frozen=True)
class Images(Keys):
    """How images are made and opened."""

    base: ShellLine = key(
        "base of the images, a Debian bookworm: docker://..., debootstrap (from the mirror that apt uses), "
        "debootstrap:MIRROR, or the path of an image",
        default=BASE,
    )
    brought: Pairs[str, Annotated[ShellLine, Rules("a path or docker://...")]] = key(
        "images that the site provides, as ENVIRONMENT: path or docker://...; each is copied into the "
        "cache and tested",
        default=(),
    )
    gpu: Literal["nv", "rocm"] = key(
        "with device cuda: driver of the accelerators (apptainer exec --nv or --rocm)", default="nv"
    )


@dataclass(frozen=True)
class Archives(Keys):
    """Where the site has archives of data sets: in a folder (no downloads), or at a URL to try first."""

    folder: Maybe[Annotated[Path, Written(Text, Path)]] = optional(
        "folder with the archives, as FOLDER/DATA SET/FILE or FOLDER/FILE, such as a copy of the downloads "
        "folder of another cache; nothing is downloaded"
    )
    mirror: Maybe[str] = optional(
        "http://, https:// or file:/// address to try first, as MIRROR/DATA SET/FILE",
        pattern=r"^(https?://|file:///)[^\s]+\Z",
    )


@dataclass(frozen=True)
class Wattmeter(Keys):
    """Meters of whole nodes behind an address, asked after a run."""

    kind: Literal["kwollect"] = key("what answers there: kwollect (Grid'5000)")
    url: str = key(
        "its address without a question mark, such as https://api.grid5000.fr/stable/sites/lyon/metrics; a "
        "name and a password for it are taken from ~/.netrc",
        pattern=r"^https?://[^\s?#]+\Z",
    )
    metric: str = key(
        "the metric whose values are W of a node", default="wattmetre_power_watt", pattern=r"^[A-Za-z0-9_]+\Z"
    )
    error_share: Maybe[float] = optional(
        "error of the wattmeters as their maker says it, a share of the power", gt=0, le=1
    )
    patience_s: float = key("how long the samples of a run's end are waited for, s", default=30, ge=0, le=600)


@dataclass(frozen=True)
class Energy(Keys):
    """The key `energy`."""

    wattmeter: Maybe[Wattmeter] = optional("wattmeters behind an address")


@dataclass(frozen=True, kw_only=True)
class SiteKeys(Keys):
    """The keys of config/sites/NAME.yaml: one place to run. It names no model and no data set."""

    description: Text = key("the machine, in words")
    launcher: Literal["local", "slurm", "oar", "pbs", "flux"] = key(
        "how ranks are started: local (processes on this machine), slurm (one srun for all ranks), oar (one "
        "oarsh per rank), pbs (one pbs_tmrsh per rank), flux (one Flux job for all ranks)"
    )
    placement: Literal["emulated", "virtual", "distinct-nodes"] = key(
        "what a node is: emulated (processes on one machine), virtual (a node of the virtual cluster, see "
        "./ringside cluster up), distinct-nodes (a machine of its own)"
    )
    device: Literal["cpu", "cuda"] = key("device that trains, where the study's factor device is site")
    devices_per_node: int = key("accelerators that a run requests on each node", default=0, ge=0, le=64)
    deployment: Literal["venv", "apptainer"] = key(
        "form of the environments: venv (a folder in the cache) or apptainer (one image per environment)"
    )
    images: Images = key(
        "how images are built and run: with deployment apptainer, and for environments that exist only as "
        "images",
        default_factory=Images,
    )
    installed: Annotated[tuple[tuple[str, Any], ...], Written(dict[str, InstalledKeys], as_pairs)] = key(
        "environments that the site has installed itself, outside images, as ENVIRONMENT: keys; they are "
        "tested and used as they are",
        default=(),
    )
    scorep: Maybe[AbsolutePath] = optional(
        "folder, the same on all nodes, where Score-P is installed (its bin/ has scorep-config), built for "
        "the MPI of LBANN; with it, an LBANN that is installed starts under Score-P where trace is full"
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
        "cores of each rank of a node, where they are heterogeneous (launcher local, device cpu), as [2, 1]; "
        "without it, every rank has as many",
        default=(),
        min_length=2,
    )
    cpu_share: Maybe[Cores | Annotated[tuple[Cores, ...], Rules(min_length=2)]] = optional(
        "CPU time of one node of the virtual cluster, in cores; of heterogeneous nodes a list, as "
        "[0.9, 0.6, 0.3]: a run takes the first ones"
    )
    nodes: int = key("largest number of nodes of a run", ge=1)
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
        "network interface that carries the gradients; of several (multi-rail) a list, as [ib0, ib1]: NCCL, "
        "PyTorch's Gloo and Open MPI use all of them, other libraries the first"
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
        "frameworks that the site has, if not all; runs of the others are listed as missing"
    )
    cache: Annotated[Path, Written(Text, Path)] = key(
        "folder outside the checkout for environments, wheels and prepared data, visible to all nodes; the "
        "variable RINGSIDE_CACHE overrides it"
    )
    datasets: Annotated[Archives, Rules(filled=True)] = key(
        "where the site has the archives of data sets (give one of the two keys); without it, they are "
        "downloaded from the published addresses",
        default_factory=Archives,
    )
    scratch: Maybe[Annotated[Path, Written(Annotated[str, Rules(pattern="^/")], Path)]] = optional(
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
        "lines export. Values stand on no command line. PYTHONPATH comes after ours; RINGSIDE_*, "
        "PYTHONHOME and variables that a shell reserves (UID, RANDOM) are refused",
        default=(),
    )
    torch_index: Maybe[str] = optional(
        "URL of the index with PyTorch's own wheels, used only for what pip does not find",
        pattern="^https?://",
    )
    time_limit_s: float = key(
        "seconds after which a run is ended and recorded as timeout; where it is longer than Slurm's "
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
        "whether a fixed piece of work (0.3 s) is timed right before and right after each run, in the cores "
        "of its ranks; without it nothing is adjusted, and nothing is known of drift",
        default=True,
    )
    wait_for_quiet: float = key(
        "seconds that a run waits at most for that work to take no longer than usual (in this campaign, of "
        "the same environment on as many nodes and cores); then it runs anyway",
        default=0,
        ge=0,
        le=86400,
    )
    exclude_nodes: Pairs[str, Annotated[Line, Rules("the reason, as text")]] = key(
        "nodes that no job and no rank uses, each with the reason, which stands in the records of runs: what "
        "./ringside nodecheck names; scheduler.exclude is for nodes without a reason",
        default=(),
    )
    energy: Annotated[Wattmeter | None, Written(Energy, lambda energy: energy.wattmeter)] = optional(
        "meters of whole nodes that are asked after a run; what nodes count themselves (NVML, AMD SMI, "
        "RAPL, Slurm) needs no key"
    )
    costs: Annotated[Costs, Rules(filled=True)] = key(
        "price, grid and stated power of a node; a changed value redraws tables and figures, and repeats no "
        "run",
        default_factory=Costs,
    )
    scheduler: Maybe[Scheduler] = optional("what jobs request from the scheduler (not with launcher local)")


@dataclass(frozen=True, kw_only=True)
class Site(SiteKeys):
    """One place to run, as this process sees it.

    `cores` is a number (auto is resolved) and `cache` an absolute folder. `cpu_shares` has a share for each
    of heterogeneous nodes; cpu_share is None then. `interface` joins several by commas, as libraries read
    them.
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
        """Return the network interfaces that carry the gradients."""
        return self.interface.split(",")

    @property
    def variant(self) -> str:
        """Return the variant of every environment's lock that its devices need."""
        return self.device

    @property
    def realization(self) -> Realization:
        """Return how it wants its environments."""
        return Realization(
            self.deployment, self.images.base, self.images.brought, self.python_abi, self.installed
        )

    @property
    def longest_run_s(self) -> float:
        """Return the longest time of one run, with the wait for a quiet machine before it."""
        return self.time_limit_s + self.wait_for_quiet

    @property
    def excluded(self) -> str:
        """Return the list of nodes that jobs do not use: scheduler.exclude and the names in exclude_nodes."""
        return ",".join(filter(None, [self.scheduler.exclude, *dict(self.exclude_nodes)]))

    def usable_hosts(self, hosts: Iterable[str]) -> list[str]:
        """Return the hosts that exclude_nodes does not name, with or without their domains."""
        return _not_excluded(hosts, self.exclude_nodes)

    @property
    def is_heterogeneous(self) -> bool:
        """Return whether its nodes, or the ranks of a node, differ in speed."""
        return bool(self.cpu_shares or self.rank_cores)

    def can_run(self, framework: str) -> bool:
        """Return whether the site can run the framework at all."""
        return self.frameworks is None or framework in self.frameworks


def load_site(name: str, folder: Path = CHECKOUT / "config" / "sites") -> Site:
    """Read and check config/sites/<name>.yaml.

    Raises:
        InputError: If it is wrong; one line.
    """
    file = existing(folder, name, "site")
    written = load(SiteKeys, file)
    _check_images(written, file)
    _check_installed(written, file)
    frameworks = (*framework_names(), *command_names())
    for i, framework in enumerate(written.frameworks or ()):
        if framework not in frameworks:
            raise unknown_name_error(framework, file, f"frameworks.{i}", frameworks)
    _check_together(written, file)
    _check_heterogeneous(written, file)
    shares = written.cpu_share if isinstance(written.cpu_share, tuple) else filter(None, [written.cpu_share])
    cpu_share, cpu_shares = as_settings(list(shares))
    cache, scheduler = _cache(written.cache, file), written.scheduler or Scheduler()
    if cpu_shares:  # the scheduler gives a run the first of them
        scheduler = replace(scheduler, nodelist=",".join(node_names(written.nodes)))
    _check_wattmeter(written.energy, file)
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
        "datasets": _archives(written.datasets, file),
        "installed": installed,
        "scheduler": scheduler,
    }
    return Site(
        name=name, file=file, python_abi=python_abi(), cpu_shares=cpu_shares, **vars(written) | changed
    )


def _cores(site: SiteKeys) -> int:
    return usable_cores() if site.cores == "auto" else site.cores


def _check_images(site: SiteKeys, file: Path) -> None:
    """Raise InputError for an image of no environment, or with a relative path."""
    for environment, source in site.images.brought:
        if environment not in names():
            raise unknown_name_error(environment, file, "images.brought", names())
        key = f"images.brought.{environment}"
        if site.deployment == "venv" and environment in locked():
            raise InputError(
                "conflicting-keys",
                "with deployment venv it is built from its lock",
                file=file,
                key=key,
                got=source,
                hint="take the line out, or say deployment: apptainer",
            )
        if "://" not in source and not source.startswith("/"):
            problem = f"'{source}' is neither an absolute path nor an address (docker://...)"
            raise InputError("bad-pattern", problem, file=file, key=key, got=source)
    base = site.images.base
    if "://" not in base and not base.startswith("/") and base != "debootstrap":
        expected = "docker://..., debootstrap, debootstrap:MIRROR or an absolute path"
        raise InputError(
            "bad-pattern",
            f"'{base}' does not look right",
            file=file,
            key="images.base",
            got=base,
            expected=expected,
        )


def _installed(name: str, keys: InstalledKeys, setup: tuple[str, ...], cache: Path) -> Installed:
    """Return what the site has installed as this environment, with the result of the last inspection."""
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


def _check_installed(site: SiteKeys, file: Path) -> None:
    """Raise InputError for an installation of no environment, without a place, or that is also an image."""
    for environment, keys in site.installed:
        if environment not in (possible := [*names(), *command_environments()]):
            raise unknown_name_error(environment, file, "installed", possible)
        check_installed(keys, file, f"installed.{environment}")
        if environment in dict(site.images.brought):
            raise InputError(
                "conflicting-keys",
                "images.brought has it, too",
                file=file,
                key=f"installed.{environment}",
                hint="take one of the two out",
            )


def _check_heterogeneous(site: SiteKeys, file: Path) -> None:
    """Raise InputError if heterogeneous nodes or ranks lack what they need."""
    launcher, shares, cores = site.launcher, site.cpu_share, site.rank_cores
    mistakes: list[tuple[bool, str, str, object, str, str]] = []
    if isinstance(shares, tuple):
        mistakes += [
            (launcher != "slurm", "not-possible-here", "cpu_share", launcher, (
                f"a list needs launcher slurm, which knows the nodes of each run, not {launcher}"
            ), ""),
            (len(shares) != site.nodes, "wrong-count", "cpu_share", len(shares), (
                f"is of {len(shares)} nodes, nodes is {site.nodes}"
            ), "give one number for each node"),
            (bool(site.scheduler and site.scheduler.nodelist), "conflicting-keys", "scheduler.nodelist", None,
             (
                "nodes of different cpu_share are taken in their order"
            ), "take it out"),
        ]  # fmt: skip
    if cores:
        ranks, together, n_cores = site.ranks_per_node, sum(cores) * site.nodes, _cores(site)
        mistakes += [
            (launcher != "local" or site.device != "cpu", "not-possible-here", "rank_cores", launcher,
             "is for launcher local and device cpu", "take it out"),
            (len(cores) != ranks, "wrong-count", "rank_cores", len(cores), (
                f"is of {len(cores)} ranks, ranks_per_node is {ranks}"
            ), "give one number for each rank"),
            (together > n_cores, "out-of-range", "rank_cores", together, (
                f"are {together} cores on all nodes, cores is {n_cores}"
            ), "give fewer"),
        ]  # fmt: skip
    for applies, code, key_name, got, problem, hint in mistakes:
        if applies:
            raise InputError(code, problem, file=file, key=key_name, got=got, hint=hint)


class _Refuse(Protocol):
    """Raise InputError about a key of the site's file."""

    def __call__(self, code: str, key: str, problem: str, **fields: Any) -> NoReturn:
        """See the class."""


def _check_together(site: SiteKeys, file: Path) -> None:
    """Raise InputError for contradictions between keys."""

    def refuse(code: str, key: str, problem: str, **fields: Any) -> NoReturn:
        raise InputError(code, problem, file=file, key=key, **fields)

    launcher, placement = site.launcher, site.placement
    if placement not in PLACEMENTS[launcher]:
        problem = f"'{placement}' is not possible with launcher {launcher}"
        refuse("not-possible-here", "placement", problem, got=placement, expected=PLACEMENTS[launcher])
    if launcher != "local" and site.cores == "auto":
        hint = f"with launcher {launcher} give the cores of one node"
        refuse("not-possible-here", "cores", "auto is for this machine", got="auto", hint=hint)
    if launcher == "local" and site.scheduler is not None:
        problem = "has no meaning with launcher local"
        refuse(
            "not-possible-here",
            "scheduler",
            problem,
            got=launcher,
            hint="take it out, or take launcher slurm",
        )
    if site.cpu_share is not None and placement != "virtual":
        problem = "only nodes of the virtual cluster have one"
        hint = "take it out, or take placement virtual"
        refuse("not-possible-here", "cpu_share", problem, got=placement, hint=hint)
    devices, ranks = site.devices_per_node, site.ranks_per_node
    if site.device == "cpu" and devices:
        refuse(
            "not-possible-here",
            "devices_per_node",
            "has no meaning with device cpu",
            got=devices,
            hint="take it out",
        )
    if site.device == "cuda" and launcher != "local" and devices < ranks:
        problem = f"{devices} is less than ranks_per_node"
        refuse("out-of-range", "devices_per_node", problem, got=devices, hint="every rank takes one device")
    if (accelerator := site.memory.device) and not find_device(accelerator):
        problem = f"'{accelerator}' is none of workflow/scripts/declared/devices.yaml"
        refuse("unknown-name", "memory.device", problem, got=accelerator, hint="give device_gib in its place")
    if site.wait_for_quiet and not site.reference:
        problem = "goes by the reference, which this site does not want"
        refuse(
            "conflicting-keys",
            "wait_for_quiet",
            problem,
            got=site.wait_for_quiet,
            hint="take out reference: false, or this line",
        )
    _check_scheduler(site.scheduler or Scheduler(), site, refuse)
    _check_excluded_nodes(site, file, refuse)


def _check_scheduler(scheduler: Scheduler, site: SiteKeys, refuse: _Refuse) -> None:
    least_s = site.time_limit_s + site.wait_for_quiet + JOB_MARGIN_S
    waits = " + wait_for_quiet" if site.wait_for_quiet else ""
    if site.scheduler and (limit_s := scheduler.block_limit_s) < least_s:
        expected = f"at least {least_s:g} s (time_limit_s{waits} + {JOB_MARGIN_S})"
        problem = f"{limit_s} s is less than one run may take"
        refuse("out-of-range", "scheduler.block_limit_s", problem, got=limit_s, expected=expected)
    for name, (problem, hint) in UNSUPPORTED_KEYS.get(site.launcher, {}).items():
        if (value := getattr(scheduler, name)) is not None:
            refuse("not-possible-here", f"scheduler.{name}", problem, got=value, hint=hint)
    if (
        site.launcher == "pbs"
        and (constraint := scheduler.constraint)
        and not _RESOURCES.fullmatch(constraint)
    ):
        problem = f"'{constraint}' is not of the form resource=value:resource=value"
        refuse("bad-pattern", "scheduler.constraint", problem, got=constraint)
    for i, option in enumerate(scheduler.options):
        _check_option(option, f"scheduler.options.{i}", site.launcher, refuse)
    listed: dict[str, list[str]] = {}
    for name, hosts in (("nodelist", scheduler.nodelist), ("exclude", scheduler.exclude)):
        try:
            listed[name] = host_names(hosts or "")
        except ValueError as error:
            refuse("bad-pattern", f"scheduler.{name}", f"'{hosts}' does not look right: {error}", got=hosts)
    named = listed["nodelist"]
    if twice := [name for name, count in Counter(named).items() if count > 1]:
        problem = f"names {', '.join(twice)} more than once"
        refuse("duplicate", "scheduler.nodelist", problem, got=twice, hint="name each node once")
    if excluded := [name for name in named if name in listed["exclude"]]:
        problem = f"names {', '.join(excluded)}, which exclude names too"
        refuse(
            "conflicting-keys",
            "scheduler.nodelist",
            problem,
            got=excluded,
            hint="take it out of one of the two",
        )
    if named and len(named) < site.nodes:
        problem = f"names {len(named)} nodes, nodes is {site.nodes}"
        refuse("too-few", "scheduler.nodelist", problem, got=len(named), hint="name as many or more")


def _check_excluded_nodes(site: SiteKeys, file: Path, refuse: _Refuse) -> None:
    """Raise InputError for names that are not of one node, and where nodes cannot be left out."""
    for name, _ in site.exclude_nodes:
        if not _HOST.fullmatch(name):
            expected = "the name of one node, such as node09; scheduler.exclude has lists"
            refuse("bad-pattern", "exclude_nodes", f"'{name}' is no node", got=name, expected=expected)
    if not site.exclude_nodes:
        return
    if site.launcher == "local":
        refuse(
            "not-possible-here",
            "exclude_nodes",
            "has no meaning with launcher local",
            got="local",
            hint="take it out",
        )
    check_left_nodes(site, file, "exclude_nodes")


def check_left_nodes(site: SiteKeys, file: Path, key_name: str) -> None:
    """Raise InputError if exclude_nodes leaves fewer nodes of scheduler.nodelist than a run may have."""
    listed = host_names((site.scheduler and site.scheduler.nodelist) or "")
    left = _not_excluded(listed, site.exclude_nodes)
    if listed and len(left) < site.nodes:
        problem = f"leaves {len(left)} of {len(listed)} nodes of scheduler.nodelist, nodes is {site.nodes}"
        hint = f"name more in the list, or set nodes to {max(1, len(left))}"
        raise InputError("too-few", problem, file=file, key=key_name, got=len(left), hint=hint)


def _check_option(option: str, key: str, launcher: str, refuse: _Refuse) -> None:
    """Raise InputError for a malformed option of the scheduler, or one that other keys set."""
    if launcher == "pbs":
        match = re.fullmatch(r"(-[A-Za-z]) ([^\s=]+)(=\S*)?", option)
        if not match:
            problem = f"'{option}' is not of the form -x value, such as -l filesystems=home"
            refuse("bad-pattern", key, problem, got=option)
        names = [match[1], f"{match[1]} {match[2]}"]
    else:
        names = [option.split("=", maxsplit=1)[0]]
        if not names[0].startswith("--") or " " in names[0]:
            refuse("bad-pattern", key, f"'{option}' is not of the form --name=value", got=option)
    for name in names:
        if name in (keys := OPTION_KEYS.get(launcher, {})):
            refuse("duplicate", key, f"{name} is set by {keys[name]}", got=name, hint="take it out")


def _not_excluded(hosts: Iterable[str], exclude_nodes: Iterable[tuple[str, str]]) -> list[str]:
    excluded = {name.split(".")[0] for name, _ in exclude_nodes}
    return [host for host in hosts if host.split(".")[0] not in excluded]


def host_names(hosts: str) -> list[str]:
    """Return the names in a list of hosts as Slurm writes them.

    node[01-03,7],login is node01, node02, node03, node7, login.
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
    """Return the numbers of ranges: 1, 2, 3, 07 for 1-3,07."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise ValueError(f"'{part}' is no range of numbers")
        if int(last or first) - int(first) >= MAX_HOSTS:
            raise ValueError(f"'{part}' has more than {MAX_HOSTS:,} numbers")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def _archives(written: Archives, file: Path) -> Archives:
    """Return the site's archives, with ~ resolved.

    Raises:
        InputError: If they are in two places, or in a relative one.
    """
    if written.folder is None:
        return written
    folder = _at_home(written.folder)
    if not folder.is_absolute() or written.mirror:
        expected = (
            "one of folder and mirror" if written.mirror else "an absolute folder or one that starts with ~"
        )
        raise InputError(
            "conflicting-keys" if written.mirror else "bad-pattern",
            f"'{folder}' is not right",
            file=file,
            key="datasets.folder",
            got=str(folder),
            expected=expected,
        )
    return Archives(folder)


def _check_wattmeter(wattmeter: Wattmeter | None, file: Path) -> None:
    """Raise InputError if the address of the wattmeters is invalid, or still the template's."""
    if wattmeter and ("CHANGE-ME" in wattmeter.url or not _leads_somewhere(wattmeter.url)):
        expected = (
            "the address of a site's metrics, such as https://api.grid5000.fr/stable/sites/lyon/metrics"
        )
        key, problem = "energy.wattmeter.url", f"'{wattmeter.url}' is not right"
        raise InputError("bad-pattern", problem, file=file, key=key, got=wattmeter.url, expected=expected)


def _leads_somewhere(url: str) -> bool:
    """Return whether an address names a host, and a valid port or none."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port beyond 65535, and of an IPv6 address that is none
        return False


def _at_home(folder: Path) -> Path:
    """Return `folder` with ~ resolved, if that user exists."""
    with contextlib.suppress(RuntimeError):
        return folder.expanduser()
    return folder


def _cache(written: Path, file: Path) -> Path:
    variable = os.environ.get("RINGSIDE_CACHE")
    cache = _at_home(Path(variable or written))
    if not cache.is_absolute() or set("{}") & set(str(cache)):
        expected = "an absolute folder or one that starts with ~, without braces"
        problem = f"'{cache}' is not right"
        place = {"file": "the variable RINGSIDE_CACHE"} if variable else {"file": file, "key": "cache"}
        raise InputError("bad-pattern", problem, **place, got=str(cache), expected=expected)
    return cache
