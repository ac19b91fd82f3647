"""A site, read and checked: one place to run, what it has, and how its scheduler is asked."""

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol
from urllib.parse import urlsplit

from common.cores import usable_cores
from common.errors import InputError
from common.files import CHECKOUT, load_yaml, shown
from common.python import python_abi
from common.schemas import check, schema
from common.text import alternatives
from declared.configuration import existing
from declared.environments import Installed, Realization, locked, names
from declared.factors import as_list
from declared.frameworks import framework_names
from declared.virtual import as_settings, node_names

MAX_HOSTS = 100_000  # in a list of nodes, which is written as ranges
WORKFLOWS_OWN = (
    "--job-name", "--output", "--error", "--comment", "--export", "--parsable", "--dependency", "--array", "--wait",
    "--test-only", "--requeue", "--no-requeue", "--signal", "--chdir", "--oversubscribe", "--exclusive", "--",
)  # fmt: skip
JOB_MARGIN_S = 180  # of a job's limit over its run's: Snakemake's start, the record, a slow file system
# Options of sbatch, qsub and flux batch that other keys say: the executor refuses sbatch's when a job is submitted.
SAID_ELSEWHERE = {
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
_RESOURCES = re.compile(r"[A-Za-z]\w*=[^\s:]+(:[A-Za-z]\w*=[^\s:]+)*")  # of a chunk of PBS's, beside ours
PLACEMENTS = {
    "local": ("emulated",),
    "slurm": ("virtual", "distinct-nodes"),
    "oar": ("virtual", "distinct-nodes"),
    "pbs": ("distinct-nodes",),
    "flux": ("distinct-nodes",),
}
# Keys of `scheduler` that a launcher has no word for, with what to do instead.
UNKNOWN = {
    "pbs": {"exclude": ("PBS cannot leave nodes out", "take it out, or name those to use in scheduler.nodelist")},
    "flux": {"memory_mb": ("Flux's jobs take nodes whole, with their memory", "take it out")},
}


@dataclass(frozen=True)
class Scheduler:
    """What jobs ask of the cluster's scheduler. Memory in MB a node, the block's limit in seconds."""

    partition: str | None
    account: str | None
    constraint: str | None
    nodelist: str | None
    exclude: str | None
    memory_mb: int | None
    options: tuple[str, ...]
    concurrent_runs: int
    build_on: str
    block_limit_s: int


@dataclass(frozen=True)
class Images:
    """How images are made and opened. `brought` has pairs of an environment and the site's own image of it."""

    base: str
    brought: tuple[tuple[str, str], ...]
    gpu: str


@dataclass(frozen=True)
class Archives:
    """Where the site has data sets' archives: in a folder, then nothing is fetched; at a URL that is tried first."""

    folder: Path | None
    mirror: str | None


@dataclass(frozen=True)
class Wattmeter:
    """Meters of whole nodes behind an address, asked after a run. `error_share`: what their maker says; `patience_s`: how long the
    last samples are waited for."""

    kind: str
    url: str
    metric: str
    error_share: float | None
    patience_s: float


@dataclass(frozen=True)
class Site:
    """One place to run, as this process finds it: `cores` is a number (auto is resolved), `cache` an absolute folder."""

    name: str
    file: Path
    launcher: str
    placement: str
    device: str
    devices_per_node: int
    deployment: str
    images: Images
    installed: tuple[tuple[str, Installed], ...]
    scorep: Path | None
    binds: tuple[str, ...]
    cores: int
    rank_cores: tuple[int, ...]  # of each rank of a node, where they are unlike
    cpu_share: float | None
    cpu_shares: tuple[float, ...]  # of each node, where they are unlike; cpu_share is None then
    python_abi: str
    nodes: int
    ranks_per_node: int
    gflops: float | None
    interface: str
    fabric: str
    bandwidth_bytes_s: float | None
    sweep_max_bytes: int
    frameworks: tuple[str, ...] | None
    cache: Path
    datasets: Archives
    scratch: Path | None
    setup: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    torch_index: str | None
    time_limit_s: float
    max_foreign_cpu_share: float
    max_steal_share: float
    reference: bool
    wait_for_quiet: float  # seconds
    energy: Wattmeter | None
    scheduler: Scheduler

    @property
    def variant(self) -> str:
        """The variant of every environment's lock that its devices need."""
        return self.device

    @property
    def realization(self) -> Realization:
        """How it wants its environments."""
        return Realization(self.deployment, self.images.base, self.images.brought, self.python_abi, self.installed)

    @property
    def longest_run_s(self) -> float:
        """What one run may take, with the wait for a quiet machine before it."""
        return self.time_limit_s + self.wait_for_quiet

    @property
    def unlike(self) -> bool:
        """Whether its nodes, or the ranks of a node, are unlike."""
        return bool(self.cpu_shares or self.rank_cores)

    def has(self, framework: str) -> bool:
        """Whether the site can run the framework at all."""
        return self.frameworks is None or framework in self.frameworks


def load_site(name: str, folder: Path = CHECKOUT / "config" / "sites") -> Site:
    """Read and check config/sites/<name>.yaml. InputError in one line when it is wrong."""
    file = existing(folder, name, "site")
    raw = load_yaml(file)
    check(raw, "site", file)
    _check_images(raw, file)
    _check_installed(raw, file)
    known = framework_names()
    for i, framework in enumerate(raw.get("frameworks", [])):
        if framework not in known:
            raise _unknown(framework, f"frameworks.{i}", known, file)
    values = _with_defaults(raw, schema("site")["properties"])
    _check_together(values, file)
    _check_unlike(values, file)
    scheduler = _with_defaults(values["scheduler"] or {}, schema("site")["properties"]["scheduler"]["properties"])
    images = _with_defaults(values["images"] or {}, schema("site")["properties"]["images"]["properties"])
    values |= {
        "images": Images(**{**images, "brought": tuple(sorted(images["brought"].items()))}),
        "scorep": Path(values["scorep"]) if values["scorep"] else None,
        "binds": tuple(values["binds"]),
        **dict(zip(("cpu_share", "cpu_shares"), as_settings(as_list(values["cpu_share"] or [])), strict=True)),
        "rank_cores": tuple(values["rank_cores"] or ()),
        "scheduler": Scheduler(**{**scheduler, "options": tuple(scheduler["options"])}),
        "cores": usable_cores() if values["cores"] == "auto" else values["cores"],
        "frameworks": tuple(values["frameworks"]) if values["frameworks"] is not None else None,
        "cache": _cache(values["cache"], file),
        "datasets": _archives(values["datasets"] or {}, file),
        "energy": _wattmeter(values["energy"] or {}, file),
        "scratch": Path(values["scratch"]) if values["scratch"] else None,
        "setup": tuple(values["setup"]),
        "variables": tuple(sorted(values["variables"].items())),
    }
    values["installed"] = tuple(
        (name, _installed(name, has, values["setup"], values["cache"]))
        for name, has in sorted(values["installed"].items())
    )
    if values["cpu_shares"]:  # the scheduler gives a run the first of them
        values["scheduler"] = replace(values["scheduler"], nodelist=",".join(node_names(values["nodes"])))
    del values["description"]
    return Site(name=name, file=file, python_abi=python_abi(), **values)


def _unknown(name: str, key: str, known: Iterable[str], file: Path) -> InputError:
    return InputError(
        "unknown-name", f"'{name}' is unknown", file=shown(file), key=key, got=name, **alternatives(name, known)
    )


def _with_defaults(raw: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    return {key: raw.get(key, entry.get("default")) for key, entry in properties.items()}


def _check_images(raw: Mapping[str, Any], file: Path) -> None:
    """InputError when an image that the site brings is of no environment, or is a path that depends on where one stands."""
    images = raw.get("images", {})
    for environment, source in images.get("brought", {}).items():
        if environment not in names():
            raise _unknown(environment, "images.brought", names(), file)
        key = f"images.brought.{environment}"
        if raw["deployment"] == "venv" and environment in locked():
            raise InputError(
                "conflicting-keys",
                "with deployment venv it is built from its lock",
                file=shown(file),
                key=key,
                got=source,
                hint="take the line out, or say deployment: apptainer",
            )
        if "://" not in source and not source.startswith("/"):
            problem = f"'{source}' is neither an absolute path nor an address (docker://...)"
            raise InputError("bad-pattern", problem, file=shown(file), key=key, got=source)
    base = images.get("base", "/")
    if "://" not in base and not base.startswith("/") and base != "debootstrap":
        expected = "docker://..., debootstrap, debootstrap:MIRROR or an absolute path"
        raise InputError(
            "bad-pattern",
            f"'{base}' does not look right",
            file=shown(file),
            key="images.base",
            got=base,
            expected=expected,
        )


def _installed(name: str, has: Mapping[str, Any], setup: tuple[str, ...], cache: Path) -> Installed:
    """What the site has installed as this environment, with what was found in it the last time that somebody looked."""
    executable, own = has.get("executable") or f"{has['prefix'].rstrip('/')}/bin/python", tuple(has.get("setup", []))
    made = Installed(executable, tuple(sorted(has.get("variables", {}).items())), own, (*setup, *own))
    try:
        found = json.loads(made.looked_at(cache, name).read_text(encoding="utf-8"))
        return replace(made, content=str(found["content"]), packages=tuple(sorted(found["packages"].items())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return made


def _check_installed(raw: Mapping[str, Any], file: Path) -> None:
    """InputError when what the site has installed is no environment, is nowhere, or is brought as an image, too."""
    for environment, has in raw.get("installed", {}).items():
        if environment not in names():
            raise _unknown(environment, "installed", names(), file)
        if len({"executable", "prefix"} & set(has)) != 1:
            both = "prefix" in has
            raise InputError(
                "conflicting-keys" if both else "missing-key",
                "has both executable and prefix" if both else "has no executable",
                file=shown(file),
                key=f"installed.{environment}",
                expected="one: executable: /path/to/python, or prefix: /path/to/environment",
            )
        if environment in raw.get("images", {}).get("brought", {}):
            raise InputError(
                "conflicting-keys",
                "images.brought has it, too",
                file=shown(file),
                key=f"installed.{environment}",
                hint="take one of the two out",
            )


def _check_unlike(values: Mapping[str, Any], file: Path) -> None:
    """What unlike nodes and ranks need."""
    launcher, shares, cores = values["launcher"], values["cpu_share"], values["rank_cores"]
    mistakes: list[tuple[bool, str, str, object, str, str]] = []
    if isinstance(shares, list):
        mistakes += [
            (launcher != "slurm", "not-possible-here", "cpu_share", launcher, f"a list needs launcher slurm, which is told the nodes of each run, not {launcher}", ""),
            (len(shares) != values["nodes"], "wrong-count", "cpu_share", len(shares), f"is of {len(shares)} nodes, nodes is {values['nodes']}", "give one number for each node"),
            ("nodelist" in (values["scheduler"] or {}), "conflicting-keys", "scheduler.nodelist", None, "nodes of unlike cpu_share are taken in their order", "take it out"),
        ]  # fmt: skip
    if cores:
        ranks, together = values["ranks_per_node"], sum(cores) * values["nodes"]
        there = usable_cores() if values["cores"] == "auto" else values["cores"]
        mistakes += [
            (launcher != "local" or values["device"] != "cpu", "not-possible-here", "rank_cores", launcher, "is for launcher local and device cpu", "take it out"),
            (len(cores) != ranks, "wrong-count", "rank_cores", len(cores), f"is of {len(cores)} ranks, ranks_per_node is {ranks}", "give one number for each rank"),
            (together > there, "out-of-range", "rank_cores", together, f"are {together} cores on all nodes, cores is {there}", "give fewer"),
        ]  # fmt: skip
    for wrong, code, key, got, problem, hint in mistakes:
        if wrong:
            raise InputError(code, problem, file=shown(file), key=key, got=got, hint=hint)


class _Refuse(Protocol):
    """Raise InputError about a key of the site's file."""

    def __call__(self, code: str, key: str, problem: str, **fields: Any) -> NoReturn:
        """See the class."""


def _check_together(values: Mapping[str, Any], file: Path) -> None:
    """What no single key shows."""

    def refuse(code: str, key: str, problem: str, **fields: Any) -> NoReturn:
        raise InputError(code, problem, file=shown(file), key=key, **fields)

    launcher, placement = values["launcher"], values["placement"]
    if placement not in PLACEMENTS[launcher]:
        problem = f"'{placement}' is not possible with launcher {launcher}"
        refuse("not-possible-here", "placement", problem, got=placement, expected=PLACEMENTS[launcher])
    if launcher != "local" and values["cores"] == "auto":
        hint = f"with launcher {launcher} give the cores of one node"
        refuse("not-possible-here", "cores", "auto is for this machine", got="auto", hint=hint)
    if launcher == "local" and values["scheduler"] is not None:
        problem = "has no meaning with launcher local"
        refuse("not-possible-here", "scheduler", problem, got=launcher, hint="take it out, or take launcher slurm")
    if values["cpu_share"] is not None and placement != "virtual":
        problem = "only nodes of the virtual cluster have one"
        hint = "take it out, or take placement virtual"
        refuse("not-possible-here", "cpu_share", problem, got=placement, hint=hint)
    devices, ranks = values["devices_per_node"], values["ranks_per_node"]
    if values["device"] == "cpu" and devices:
        refuse(
            "not-possible-here", "devices_per_node", "has no meaning with device cpu", got=devices, hint="take it out"
        )
    if values["device"] == "cuda" and launcher != "local" and devices < ranks:
        problem = f"{devices} is less than ranks_per_node"
        refuse("out-of-range", "devices_per_node", problem, got=devices, hint="every rank takes one device")
    if values["wait_for_quiet"] and not values["reference"]:
        problem = "goes by the reference, which this site does not want"
        refuse(
            "conflicting-keys",
            "wait_for_quiet",
            problem,
            got=values["wait_for_quiet"],
            hint="take out reference: false, or this line",
        )
    _check_scheduler(values["scheduler"] or {}, values, refuse)


def _check_scheduler(scheduler: Mapping[str, Any], values: Mapping[str, Any], refuse: _Refuse) -> None:
    least_s = values["time_limit_s"] + values["wait_for_quiet"] + JOB_MARGIN_S
    waits = " + wait_for_quiet" if values["wait_for_quiet"] else ""
    if (limit_s := scheduler.get("block_limit_s", least_s)) < least_s:
        expected = f"at least {least_s:g} s (time_limit_s{waits} + {JOB_MARGIN_S})"
        problem = f"{limit_s} s is less than one run may take"
        refuse("out-of-range", "scheduler.block_limit_s", problem, got=limit_s, expected=expected)
    for key, (problem, hint) in UNKNOWN.get(values["launcher"], {}).items():
        if key in scheduler:
            refuse("not-possible-here", f"scheduler.{key}", problem, got=scheduler[key], hint=hint)
    if values["launcher"] == "pbs" and not _RESOURCES.fullmatch(constraint := scheduler.get("constraint", "a=b")):
        problem = f"'{constraint}' is not of the form resource=value:resource=value"
        refuse("bad-pattern", "scheduler.constraint", problem, got=constraint)
    for i, option in enumerate(scheduler.get("options", [])):
        _check_option(option, f"scheduler.options.{i}", values["launcher"], refuse)
    listed: dict[str, list[str]] = {}
    for key in ("nodelist", "exclude"):
        try:
            listed[key] = host_names(scheduler.get(key, ""))
        except ValueError as error:
            problem = f"'{scheduler[key]}' does not look right: {error}"
            refuse("bad-pattern", f"scheduler.{key}", problem, got=scheduler[key])
    named = listed["nodelist"]
    if twice := [name for name, count in Counter(named).items() if count > 1]:
        problem = f"names {', '.join(twice)} more than once"
        refuse("duplicate", "scheduler.nodelist", problem, got=twice, hint="name each node once")
    if both := [name for name in named if name in listed["exclude"]]:
        problem = f"names {', '.join(both)}, which exclude names too"
        refuse("conflicting-keys", "scheduler.nodelist", problem, got=both, hint="take it out of one of the two")
    if named and len(named) < values["nodes"]:
        problem = f"names {len(named)} nodes, nodes is {values['nodes']}"
        refuse("too-few", "scheduler.nodelist", problem, got=len(named), hint="name as many or more")


def _check_option(option: str, key: str, launcher: str, refuse: _Refuse) -> None:
    """An option of the scheduler's program that is none, or that other keys say."""
    if launcher == "pbs":
        found = re.fullmatch(r"(-[A-Za-z]) ([^\s=]+)(=\S*)?", option)
        if not found:
            problem = f"'{option}' is not of the form -x value, such as -l filesystems=home"
            refuse("bad-pattern", key, problem, got=option)
        names = [found[1], f"{found[1]} {found[2]}"]
    else:
        names = [option.split("=", maxsplit=1)[0]]
        if not names[0].startswith("--") or " " in names[0]:
            refuse("bad-pattern", key, f"'{option}' is not of the form --name=value", got=option)
    for name in names:
        if name in (said := SAID_ELSEWHERE.get(launcher, {})):
            refuse("duplicate", key, f"{name} is said by {said[name]}", got=name, hint="take it out")


def host_names(hosts: str) -> list[str]:
    """The names in a list of hosts as Slurm writes them: node[01-03,7],login is node01, node02, node03, node7, login."""
    names: list[str] = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", hosts):
        found = re.fullmatch(r"([^\[\]]+)(?:\[([\d,-]+)\]([^\[\]]*))?", entry)
        if not found:
            raise ValueError("expected names such as node1,node2 or node[1-4]")
        before, numbers, after = found.groups()
        names += [f"{before}{number}{after}" for number in _numbers(numbers)] if numbers else [before]
        if len(names) > MAX_HOSTS:
            raise ValueError(f"there are more than {MAX_HOSTS:,} names")
    return names


def _numbers(ranges: str) -> list[str]:
    """1-3,07 is 1, 2, 3, 07."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise ValueError(f"'{part}' is no range of numbers")
        if int(last or first) - int(first) >= MAX_HOSTS:
            raise ValueError(f"'{part}' has more than {MAX_HOSTS:,} numbers")
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1)]
    return numbers


def _archives(raw: Mapping[str, str], file: Path) -> Archives:
    if "folder" not in raw:
        return Archives(None, raw.get("mirror"))
    folder = _at_home(Path(raw["folder"]))
    if not folder.is_absolute() or "mirror" in raw:
        expected = "one of folder and mirror" if "mirror" in raw else "an absolute folder or one that starts with ~"
        raise InputError(
            "conflicting-keys" if "mirror" in raw else "bad-pattern",
            f"'{folder}' is not right",
            file=shown(file),
            key="datasets.folder",
            got=str(folder),
            expected=expected,
        )
    return Archives(folder, None)


def _wattmeter(raw: Mapping[str, Any], file: Path) -> Wattmeter | None:
    """The site's wattmeters. InputError where their address leads nowhere, or is still that of the template."""
    if "wattmeter" not in raw:
        return None
    known = schema("site")["properties"]["energy"]["properties"]["wattmeter"]["properties"]
    made = Wattmeter(**_with_defaults(raw["wattmeter"], known))
    if "CHANGE-ME" in made.url or not _leads_somewhere(made.url):
        expected = "the address of a site's metrics, such as https://api.grid5000.fr/stable/sites/lyon/metrics"
        key, problem = "energy.wattmeter.url", f"'{made.url}' is not right"
        raise InputError("bad-pattern", problem, file=shown(file), key=key, got=made.url, expected=expected)
    return made


def _leads_somewhere(url: str) -> bool:
    """Whether an address names a host, and a port that there may be, or none."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port beyond 65535, and of an IPv6 address that is none
        return False


def _at_home(folder: Path) -> Path:
    """`folder` with ~ resolved, as far as that user is there."""
    with contextlib.suppress(RuntimeError):
        return folder.expanduser()
    return folder


def _cache(written: str, file: Path) -> Path:
    variable = os.environ.get("RINGSIDE_CACHE")
    cache = _at_home(Path(variable or written))
    if not cache.is_absolute() or set("{}") & set(str(cache)):
        expected = "an absolute folder or one that starts with ~, without braces"
        problem = f"'{cache}' is not right"
        place = {"file": "the variable RINGSIDE_CACHE"} if variable else {"file": shown(file), "key": "cache"}
        raise InputError("bad-pattern", problem, **place, got=str(cache), expected=expected)
    return cache
