"""What makes a run the run that it is: its spec, and the key under which its measurement is kept.

The key is computed while Snakemake parses, from files in git alone; what must cause a new measurement is in the path.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.settings import shaping
from common.files import digest_sources, digest_text
from datasets.table import DATASETS, FRESH, load_dataset
from environments.description import Realization, environment_digest
from environments.description import read as read_environment
from models.graph import Graph
from plan.design import Run
from plan.site import Site
from plan.study import FRAMEWORKS, LIBRARIES, RUNS, Study, load_framework, model_graph

# What every rank uses of the models' code.
MODEL_CODE = tuple(RUNS.parent / "models" / name for name in ("graph.py", "initial.py"))
# What only brings archives here, under checksums, or looks at prepared files, changes nothing of what is prepared; nor does
# what reads the table, whose entries are in the digest themselves.
NOT_PREPARING = ("fetch.py", "lock.py", "table.py", "transfer.py", "verified.py")
FETCHING_KEYS = ("url", "mirrors", "unpacked_bytes")
TOLD_KEYS = ("title", "licence", "citation")  # for people


def cores_per_rank(site: Site) -> int:
    """Cores of one replica, the same in all cells: the machine's cores over the largest number of ranks on it."""
    ranks_on_a_machine = site.ranks_per_node * (site.nodes if site.placement == "emulated" else 1)
    return max(1, site.cores // ranks_on_a_machine)


def spec(study: Study, site: Site, run: Run) -> dict[str, Any]:
    """All that a measurement depends on, apart from software and data: the run's and the site's measured part."""
    return {
        "run_id": run.run_id,
        "levels": run.levels,
        "replicate": run.replicate,
        "seed": run.seed,
        **vars(run.geometry),
        "step_times": study.step_times,
        **site_part(site),
        **links(site, run.levels),
        "device": device(site, run.levels),
        "cores_per_rank": cores_per_rank(site) * run.geometry.replicas_per_rank,
    }


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


def lacks(site: Site, levels: Mapping[str, Any]) -> str | None:
    """Why the site cannot run cells with these levels, although they can be planned; None where it can."""
    name, what = levels["framework"], device(site, levels)
    if not site.has(name):
        return f"site {site.name} does not have {name}"
    framework = load_framework(name)
    if not framework.adapter:
        return f"site {site.name} cannot run {name}: its adapter is not written yet"
    if not _available(framework.environment, site):
        where = f"installed.{framework.environment} or images.brought.{framework.environment}"
        return f"{framework.environment} is not installed at site {site.name} (see {where} in config/schemas/site.schema.yaml)"
    if framework.mpi and site.launcher == "oar":
        return f"site {site.name} starts ranks by oarsh, {name} needs srun or mpirun"
    if what == "hybrid":
        return f"site {site.name} cannot train on processors and accelerators together: no framework here does yet"
    if what == "cuda" != site.device:
        return f"site {site.name} has no device cuda"
    if levels["bandwidth"] and site.placement != "virtual":
        return f"site {site.name} cannot set the rate of its links: only the virtual cluster can"
    if levels["precision"] == "tf32" and what != "cuda":
        return f"site {site.name} cannot compute in tf32: only device cuda can"
    if without := _cannot_compute(name, levels["model"], levels["dataset"], what):
        return f"site {site.name} has device {what}, on which {name} cannot compute {', '.join(without)} of {levels['model']}"
    if levels["compiler"] != "none" and site.deployment == "apptainer":
        return f"site {site.name} trains in images, which have no compiler for {levels['compiler']}"
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


def variant(site: Site) -> str:
    """The variant of every environment's lock that the site's devices need."""
    return site.device


def realization(site: Site) -> Realization:
    """How the site wants its environments."""
    return Realization(site.deployment, site.images.base, site.images.brought, site.python_abi, site.installed)


@functools.cache
def _cannot_compute(framework: str, model: str, dataset: str, device: str) -> list[str]:
    """The kinds of operators in a model that a framework does not have on a device."""
    without = load_framework(framework).without.get(device, [])
    return (
        sorted({operator.kind for operator in model_graph(model, dataset).operators} & set(without)) if without else []
    )


@functools.cache
def _available(environment: str, site: Site) -> bool:
    return read_environment(environment).available(realization(site))


@functools.cache
def _environment_digest(environment: str, site: Site) -> str:
    return environment_digest(environment, variant(site), realization(site))


def rank_code(framework: str) -> list[Path]:
    """The code of a framework's ranks: the shared worker, the libraries' modules, the adapter (files and folders)."""
    libraries = [LIBRARIES / f"{library}.py" for library in load_framework(framework).libraries]
    return [RUNS / "worker", *libraries, FRAMEWORKS / framework]


@functools.cache
def code_digest(framework: str, model: str, dataset: str) -> str:
    """SHA-256 of what trains: the shared worker, the libraries' modules, the adapter, the model as it is built."""
    code = digest_sources([*MODEL_CODE, *rank_code(framework)])
    return digest_text(code + json.dumps(model_graph(model, dataset).to_json(), sort_keys=True))


@functools.cache
def data_digest(dataset: str) -> str:
    """SHA-256 of the data set's table entry and of the code that prepares it; what it is called and where it is fetched from is no part."""
    code = digest_sources(file for file in DATASETS.parent.glob("*.py") if file.name not in NOT_PREPARING)
    entry = {key: said for key, said in load_dataset(dataset).items() if key not in TOLD_KEYS}
    if "files" in entry:
        entry["files"] = [
            {key: said for key, said in file.items() if key not in FETCHING_KEYS} for file in entry["files"]
        ]
    return digest_text(json.dumps(entry, sort_keys=True) + code)


def digests(site: Site, run: Run) -> dict[str, str]:
    """The three digests of a run: environment, code, data (64 hex digits each)."""
    framework = run.levels["framework"]
    return {
        "environment_digest": _environment_digest(load_framework(framework).environment, site),
        "code_digest": code_digest(framework, run.levels["model"], run.levels["dataset"]),
        "data_digest": data_digest(run.levels["dataset"]),
    }


def run_key(study: Study, site: Site, run: Run) -> str:
    """First 12 hex digits of the SHA-256 over spec and digests."""
    return digest_text(json.dumps([spec(study, site, run), digests(site, run)], sort_keys=True))[:12]


def data_folder(site: Site, dataset: str) -> Path:
    """Where the prepared data set lies in the site's cache."""
    return site.cache / "datasets" / dataset / data_digest(dataset)[:12]


def data_files(folder: Path, dataset: str) -> list[Path]:
    """The files of a prepared data set in `folder` (datasets/prepared.py); a fresh one has no images."""
    if load_dataset(dataset)["format"] == FRESH:
        return [folder / "manifest.json"]
    parts = ("images.npy", "labels.npy", "manifest.json")
    return [folder / "manifest.json", *(folder / split / name for split in ("train", "validation") for name in parts)]


def graph_of(run: Run) -> Graph:
    """The run's model, for its data set."""
    return model_graph(run.levels["model"], run.levels["dataset"])
