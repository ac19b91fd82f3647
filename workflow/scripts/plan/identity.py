"""What makes a run the run that it is: its spec, and the key under which its measurement is kept.

The key is computed while Snakemake parses, from files in git alone; what must cause a new measurement is in the path.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from common.files import digest_text
from common.normal_form import digest_sources
from common.notes import Note
from datasets.identity import data_digest, data_folder
from declared.environments import older
from declared.environments import read as read_environment
from declared.frameworks import FRAMEWORKS, LIBRARIES, RANKS, Framework, framework_names, load_framework
from declared.models import model_graph
from declared.site import Site
from declared.study import Study
from declared.virtual import shaping
from environments import scorep
from environments.identity import environment_digest, environment_stamp
from models import strategy
from models.graph import Graph
from plan.design import Geometry, Run

# What every rank uses of the models' code.
MODEL_CODE = tuple(RANKS.parent / "models" / name for name in ("graph.py", "initial.py", "mesh.py"))
DIVISION = [RANKS.parent / "models" / "division.py"]  # what those use that divide models
# Keys of framework.yaml that say nothing of what its ranks do.
WORDS_OF_DESCRIPTIONS = ("title", "needs", "why", "notes")
STRATEGY = [RANKS.parent / "models" / f"{name}.py" for name in ("soap", "strategy", "layout")]  # each layer by itself


def cores_per_rank(site: Site) -> int:
    """Cores of one replica, the same in all cells: the machine's cores over the largest number of ranks on it."""
    ranks_on_a_machine = site.ranks_per_node * (site.nodes if site.placement == "emulated" else 1)
    return max(1, site.cores // ranks_on_a_machine)


HOST_CORES = 2  # of a rank that trains on an accelerator beside one that trains on processors: it feeds its device


def unlike(site: Site, levels: Mapping[str, Any], geometry: Geometry) -> dict[str, Any]:
    """What a cell with these levels is told where its nodes or the ranks of a node are unlike; nothing where they are alike.

    `rank_cores`: cores of each rank of a node. With device hybrid the last rank trains on all processors that the others leave.
    """
    told: dict[str, Any] = {}
    if site.cpu_shares:
        told["cpu_shares"] = list(site.cpu_shares[: geometry.nodes])
    ranks = geometry.ranks_per_node
    if device(site, levels) == "hybrid":
        cores = site.cores // (site.nodes if site.placement == "emulated" else 1)
        each = max(1, min(HOST_CORES, cores // ranks))
        told["rank_cores"] = [each] * (ranks - 1) + [max(1, cores - each * (ranks - 1))]
    elif site.rank_cores:
        told["rank_cores"] = list(site.rank_cores[:ranks])
    return told


def spec(study: Study, site: Site, run: Run) -> dict[str, Any]:
    """All that a measurement depends on, apart from software and data: the run's and the site's measured part."""
    return {
        "run_id": run.run_id,
        "levels": run.levels,
        "replicate": run.replicate,
        "seed": run.seed,
        **laid_out(run.geometry),
        "step_times": study.step_times,
        **of_site(site, run.levels, run.geometry),
        **({"strategy": strategy.to_json(run.strategy)} if run.strategy else {}),
    }


def of_site(site: Site, levels: Mapping[str, Any], geometry: Geometry) -> dict[str, Any]:
    """Return what a site adds to the specification of a run with these levels."""
    cores = unlike(site, levels, geometry)
    return {
        **site_part(site),
        **links(site, levels),
        **({"scorep": scorep.version(site.scorep)} if site.scorep and under_scorep(site, levels) else {}),
        "device": device(site, levels),
        "cores_per_rank": max(cores.get("rank_cores", [cores_per_rank(site) * geometry.replicas_per_rank])),
        **cores,
    }


def laid_out(geometry: Geometry) -> dict[str, Any]:
    """What a run is told of its geometry; `mesh`, the size of each axis, only where ranks divide more than samples."""
    told = vars(geometry)
    return {**told, "mesh": geometry.mesh.sizes} if geometry.mesh else {key: told[key] for key in told if key != "mesh"}


def device(site: Site, levels: Mapping[str, Any]) -> str:
    """What trains in a cell with these levels."""
    return site.device if levels["device"] == "site" else str(levels["device"])


def link_rate(site: Site, levels: Mapping[str, Any]) -> float | None:
    """The rate of the nodes' links in each direction, in bytes/s, in a cell with these levels; None where nobody names one."""
    return levels["bandwidth"] * 1e6 / 8 or site.bandwidth_bytes_s


def links(site: Site, levels: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell with these levels is told of the nodes' links: their rate, and what gives it to them where that is ours to do."""
    rate = link_rate(site, levels)
    return {"bandwidth_bytes_s": rate, "shaping": shaping(rate) if rate and site.placement == "virtual" else None}


def under_scorep(site: Site, levels: Mapping[str, Any]) -> bool:
    """Whether cells with these levels run under Score-P: programs of MPI that the site has installed as it has Score-P, traced in full."""
    framework = load_framework(levels["framework"])
    installed = framework.environment in dict(site.installed)
    return site.scorep is not None and framework.mpi and installed and levels["trace"] == "full"


# What starts ranks where nothing brings programs of MPI together. Flux could, with its plugin flux-pmix, and PBS by mpirun: nobody tried that.
WITHOUT_MPI = {"pbs": "pbs_tmrsh", "flux": "flux submit"}


def lacks(site: Site, levels: Mapping[str, Any]) -> Note | None:
    """Why the site cannot run cells with these levels, although they can be planned; None where it can."""
    name, what = levels["framework"], device(site, levels)
    if not site.has(name):
        return Note("framework-not-at-site", f"site {site.name} does not have {name}", framework=name)
    framework = load_framework(name)
    if not framework.adapter:
        return Note("no-adapter", f"site {site.name} cannot run {name}: its adapter is not written yet", framework=name)
    if not _available(framework.environment, site):
        where = f"installed.{framework.environment} or images.brought.{framework.environment}"
        return Note(
            "not-installed",
            f"{framework.environment} is not installed at site {site.name} (see {where} in docs/reference/configuration.md)",
            environment=framework.environment,
        )
    if said := _too_old(name, site):
        return said
    if framework.mpi and site.launcher in WITHOUT_MPI:
        return Note(
            "no-mpi",
            f"site {site.name} starts ranks by {WITHOUT_MPI[site.launcher]}, {name} needs srun or mpirun",
            framework=name,
            launcher=site.launcher,
            starts=WITHOUT_MPI[site.launcher],
        )
    if said := _lacks_devices(site, framework, what):
        return said
    if levels["bandwidth"] and site.placement != "virtual":
        return Note(
            "no-link-rate",
            f"site {site.name} cannot set the rate of its links: only the virtual cluster can",
            bandwidth=levels["bandwidth"],
        )
    if levels["precision"] == "tf32" and what != "cuda":
        return Note(
            "unsupported-precision",
            f"site {site.name} cannot compute in tf32: only device cuda can",
            precision="tf32",
            device=what,
        )
    if without := _cannot_compute(name, levels["model"], levels["dataset"], what):
        return Note(
            "missing-operators",
            f"site {site.name} has device {what}, on which {name} cannot compute {', '.join(without)} of {levels['model']}",
            framework=name,
            model=levels["model"],
            device=what,
            operators=without,
        )
    if site.scorep and under_scorep(site, levels) and scorep.version(site.scorep) is None:
        return Note(
            "no-scorep",
            f"site {site.name} names Score-P in {site.scorep}, whose bin/scorep-config tells no version here",
            scorep=site.scorep,
        )
    if levels["compiler"] != "none" and site.deployment == "apptainer":
        return Note(
            "no-compiler",
            f"site {site.name} trains in images, which have no compiler for {levels['compiler']}",
            compiler=levels["compiler"],
        )
    return None


def _lacks_devices(site: Site, framework: Framework, what: str) -> Note | None:
    """Why a site cannot train with a framework on these devices; None where it can."""
    if what == "hybrid" and not framework.unlike:
        return Note(
            "no-hybrid",
            f"{framework.name} cannot train on processors and accelerators together: {' and '.join(_unlike())} can",
            framework=framework.name,
            able=_unlike(),
        )
    if what in ("cpu", "cuda") and what not in framework.devices:
        return Note(
            "unsupported-device",
            f"{framework.name} does not train on device {what}, which site {site.name} has",
            framework=framework.name,
            device=what,
        )
    if what != site.device != "cuda":
        together = " to train on together with its processors" if what == "hybrid" else ""
        return Note("no-accelerator", f"site {site.name} has no device cuda{together}", device=what)
    if what == "hybrid" and site.launcher == "flux":
        return Note(
            "no-hybrid-here",
            f"site {site.name} starts ranks by flux submit, each with an accelerator: none is left to train on processors",
            launcher=site.launcher,
        )
    if site.rank_cores and (framework.mpi or framework.mirrored):
        return Note(
            "heterogeneous-ranks",
            f"site {site.name} has ranks of unlike cores (rank_cores), {framework.name} wants as many for each",
            framework=framework.name,
        )
    return None


def site_part(site: Site) -> dict[str, Any]:
    """What of the site changes a measurement: never accounts, limits or paths."""
    return {
        "device": site.device,
        "placement": site.placement,
        "deployment": site.deployment,
        "cores": site.cores,
        "cores_per_rank": cores_per_rank(site),
        "cpu_share": site.cpu_share,
        "interface": site.interface,
        "fabric": site.fabric,
        "setup": list(site.setup),
        "variables": dict(site.variables),
        "partition": site.scheduler.partition,
        "constraint": site.scheduler.constraint,
    }


@functools.cache
def _unlike() -> list[str]:
    """The frameworks whose ranks may be unlike."""
    return [name for name in framework_names() if load_framework(name).unlike]


@functools.cache
def _cannot_compute(framework: str, model: str, dataset: str, device: str) -> list[str]:
    """The kinds of operators in a model that a framework does not have on a device."""
    without = load_framework(framework).without.get(device, [])
    return (
        sorted({operator.kind for operator in model_graph(model, dataset).operators} & set(without)) if without else []
    )


@functools.cache
def _too_old(name: str, site: Site) -> Note | None:
    """Why the software that a site has installed cannot run a framework; None where it can, or was made here."""
    framework = load_framework(name)
    has = dict(site.installed).get(framework.environment)
    for package, oldest in framework.needs.items() if has else ():
        found = dict(has.packages).get(package) if has else None
        if found and older(found, oldest):
            return Note(
                "too-old",
                f"site {site.name} has {package} {found} installed, {name} needs {oldest} or newer",
                framework=name,
                package=package,
                installed=found,
                needed=oldest,
            )
    return None


@functools.cache
def _available(environment: str, site: Site) -> bool:
    return read_environment(environment).available(site.realization)


@functools.cache
def _environment_digest(environment: str, site: Site) -> str:
    return environment_digest(environment, site.variant, site.realization)


def rank_code(framework: str) -> list[Path]:
    """The code of a framework's ranks: the shared worker, the libraries' modules, the adapter (files and folders)."""
    described = load_framework(framework)
    libraries = [LIBRARIES / f"{library}.py" for library in described.libraries]
    divides = any(axes & {"pipeline", "tensor"} for axes in described.meshes)
    return [
        RANKS / "worker",
        *libraries,
        *(DIVISION if divides else []),
        *(STRATEGY if described.strategies else []),
        FRAMEWORKS / framework,
    ]


def digest_rank_code(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of code of ranks; of descriptions of frameworks as far as they say what is done."""
    return digest_sources(paths, words=WORDS_OF_DESCRIPTIONS)


@functools.cache
def code_digest(framework: str, model: str, dataset: str) -> str:
    """Return the SHA-256 of what trains: the shared worker, the libraries' modules, the adapter, the model as it is built."""
    code = digest_rank_code([*MODEL_CODE, *rank_code(framework)])
    return digest_text(code + json.dumps(model_graph(model, dataset).to_json(), sort_keys=True))


def digests(site: Site, levels: Mapping[str, Any]) -> dict[str, str]:
    """The three digests of a run with these levels: environment, code, data (64 hex digits each)."""
    framework, model, dataset = levels["framework"], levels["model"], levels["dataset"]
    return {
        "environment_digest": _environment_digest(load_framework(framework).environment, site),
        "code_digest": code_digest(framework, model, dataset),
        "data_digest": data_digest(dataset),
    }


@dataclass(frozen=True)
class Planned:
    """A run as it is to be measured at a site: whoever makes its record is given this, and plans nothing.

    Attributes:
        study: The name of the study.
        site: Where it is measured.
        spec: All that the measurement depends on, apart from software and data.
        digests: SHA-256 of software, code and data (64 hex digits each).
    """

    study: str
    site: Site
    spec: dict[str, Any]
    digests: dict[str, str]

    @cached_property
    def key(self) -> str:
        """The first 12 hex digits of the SHA-256 over spec and digests; the measurement is kept under it."""
        return digest_text(json.dumps([self.spec, self.digests], sort_keys=True))[:12]

    @property
    def run_id(self) -> str:
        """The run's name in the design."""
        return str(self.spec["run_id"])

    @property
    def framework(self) -> Framework:
        """What trains."""
        return load_framework(self.spec["levels"]["framework"])

    @property
    def graph(self) -> Graph:
        """The model."""
        return model_graph(self.spec["levels"]["model"], self.spec["levels"]["dataset"])

    @property
    def environment(self) -> Path:
        """The stamp of its environment, environment.json."""
        return environment_of(self.site, self.framework)

    @property
    def data(self) -> Path:
        """The folder of the prepared data set."""
        return data_folder(self.site, self.spec["levels"]["dataset"])

    def is_current(self) -> bool:
        """Return whether site, software, code and data are still those that it was planned with."""
        levels, fields = self.spec["levels"], [field.name for field in dataclasses.fields(Geometry)]
        geometry = Geometry(**{name: self.spec[name] for name in fields if name != "mesh"})
        now = self.spec | of_site(self.site, levels, geometry)
        return Planned(self.study, self.site, now, digests(self.site, levels)).key == self.key


def plan_run(study: Study, site: Site, run: Run) -> Planned:
    """Return a run of `study` as it is measured at `site`."""
    return Planned(study.name, site, spec(study, site, run), digests(site, run.levels))


def environment_of(site: Site, framework: Framework) -> Path:
    """The stamp of a framework's environment at a site."""
    return environment_stamp(site.cache, framework.environment, site.variant, site.realization)
