"""Identify a run by its specification, and by the key under which its measurement is stored.

The key is computed while Snakemake parses, from files in git only. It is part of the path of the record, so
that every change that needs a new measurement leads to a new path.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, digest_text
from common.normal_form import digest_sources
from common.notes import Note
from datasets.identity import data_digest, data_folder
from declared.datasets import find_dataset
from declared.devices import stated_peak
from declared.environments import older
from declared.environments import read as read_environment
from declared.factors import has_largest_batch
from declared.frameworks import (
    COMMAND_ADAPTER,
    FRAMEWORKS,
    LIBRARIES,
    RANKS,
    Framework,
    framework_names,
    load_framework,
)
from declared.models import model_graph
from declared.own_models import is_own_model, load_own_model
from declared.site import Site
from declared.study import Study
from declared.virtual import shaping
from environments import scorep
from environments.identity import environment_digest, environment_stamp
from models import strategy
from models.graph import Graph
from models.precision import COMPUTES_IN_BFLOAT16, TF32
from plan.batch_sizes import search_name
from plan.design import JAX, Geometry, Run
from plan.own_commands import command_code_digest, command_fields, count_samples, unregistered_data_digest

# Modules of `models` that every rank imports.
MODEL_CODE = tuple(
    RANKS.parent / "models" / f"{name}.py" for name in ("graph", "initial", "mesh", "pipelines")
)
# Module of `models` that the libraries with levels of precision import.
PRECISION_CODE = RANKS.parent / "models" / "precision.py"
LIBRARIES_WITH_PRECISION = {"pytorch", "tensorflow", "jax_training"}
DIVISION_CODE = [RANKS.parent / "models" / "division.py"]  # of ranks that partition models along a mesh
# Keys of framework.yaml that the digest of ranks' code leaves out: only people and the plan read them.
# A change to any other key, `capabilities` included, changes the keys of all runs of the framework.
DESCRIPTIVE_KEYS = ("title", "needs", "why", "notes", "own_modules")
# Modules of `models` that ranks with a parallelization strategy import.
STRATEGY_CODE = [RANKS.parent / "models" / f"{name}.py" for name in ("soap", "strategy", "layout")]


def cores_per_rank(site: Site) -> int:
    """Return the cores of one replica: the machine's cores over the largest number of ranks that it can have.

    Cells with fewer ranks leave cores idle, so that a replica has the same cores in all cells.
    """
    ranks_on_a_machine = site.ranks_per_node * (site.nodes if site.placement == "emulated" else 1)
    return max(1, site.cores // ranks_on_a_machine)


GPU_HOST_CORES = 2  # cores of a GPU rank that feed its device, where another rank trains on CPU cores


def heterogeneous_resources(site: Site, levels: Mapping[str, Any], geometry: Geometry) -> dict[str, Any]:
    """Return per-node CPU shares and per-rank core counts of a heterogeneous cell, {} for a homogeneous one.

    With `device: hybrid` the last rank of each node trains on the cores that the GPU ranks leave free.
    """
    resources: dict[str, Any] = {}
    if site.cpu_shares:
        resources["cpu_shares"] = list(site.cpu_shares[: geometry.nodes])
    ranks = geometry.ranks_per_node
    if device_kind_of(site, levels) == "hybrid":
        cores = site.cores // (site.nodes if site.placement == "emulated" else 1)
        host_cores = max(1, min(GPU_HOST_CORES, cores // ranks))
        resources["rank_cores"] = [host_cores] * (ranks - 1) + [max(1, cores - host_cores * (ranks - 1))]
    elif site.rank_cores:
        resources["rank_cores"] = list(site.rank_cores[:ranks])
    return resources


def spec(study: Study, site: Site, run: Run) -> dict[str, Any]:
    """Return the specification of a run: everything its result depends on except software and data."""
    levels = run.levels
    if has_largest_batch(levels):  # Ranks get the batch size that the search found.
        levels = {**levels, "batch_size": run.geometry.local_batch}
    return {
        "run_id": run.run_id,
        "levels": levels,
        "replicate": run.replicate,
        "seed": run.seed,
        **geometry_fields(run.geometry),
        "step_times": study.step_times,
        **(command_fields(run.framework.command) if run.framework.command else {}),
        **site_fields(site, run.levels, run.geometry),
        **strategy_fields(run),
        **({"batch_search": search_name(run.levels)} if has_largest_batch(run.levels) else {}),
    }


def strategy_fields(run: Run) -> dict[str, Any]:
    """Return the fields of a run's parallelization strategy in its specification, {} without a strategy."""
    if run.strategy is None:
        return {}
    return {"strategy": strategy.to_json(run.strategy), "bucket_bytes": list(run.bucket_bytes)}


def site_fields(site: Site, levels: Mapping[str, Any], geometry: Geometry) -> dict[str, Any]:
    """Return the fields that a site adds to the specification of a run with these levels."""
    cores = heterogeneous_resources(site, levels, geometry)
    return {
        **site_part(site),
        **link_settings(site, levels),
        **(
            {"scorep": scorep.version(site.scorep)} if site.scorep and runs_under_scorep(site, levels) else {}
        ),
        # A cell overrides the device and the cores per rank of `site_part`: its device may be another one,
        # and its ranks may have several replicas or different core counts.
        "device": device_kind_of(site, levels),
        "cores_per_rank": max(cores.get("rank_cores", [cores_per_rank(site) * geometry.replicas_per_rank])),
        **cores,
    }


def geometry_fields(geometry: Geometry) -> dict[str, Any]:
    """Return the fields of a geometry for a specification: without a mesh, or with the size of each axis."""
    fields = vars(geometry)
    return (
        {**fields, "mesh": geometry.mesh.sizes}
        if geometry.mesh
        else {k: v for k, v in fields.items() if k != "mesh"}
    )


def device_kind_of(site: Site, levels: Mapping[str, Any]) -> str:
    """Return the kind of device that a cell with these levels trains on: cpu, cuda or hybrid."""
    return site.device if levels["device"] == "site" else str(levels["device"])


def link_rate(site: Site, levels: Mapping[str, Any]) -> float | None:
    """Return the nodes' link rate in each direction in bytes/s, None if neither levels nor site set one."""
    return levels["bandwidth"] * 1e6 / 8 or site.bandwidth_bytes_s


def device_peak(site: Site, levels: Mapping[str, Any]) -> float | None:
    """Return the peak of a device in FLOP/s that the site states for the cell's precision, None without one.

    Of the peak of all cores a CPU rank gets the share of its cores, or of its virtual node's CPU quota.
    """
    peak, kind = stated_peak(site.peak_tflops, levels["precision"]), device_kind_of(site, levels)
    if peak is None or kind == "hybrid" or site.is_heterogeneous or (kind == "cpu") != (site.device == "cpu"):
        return None
    if kind == "cuda":
        return peak
    cores = float(cores_per_rank(site))
    if site.cpu_share:
        cores = min(cores, site.cpu_share / site.ranks_per_node)
    return peak * cores / site.cores


def link_settings(site: Site, levels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the link rate of a cell, and the traffic shaping that enforces it on virtual nodes."""
    rate = link_rate(site, levels)
    return {
        "bandwidth_bytes_s": rate,
        "shaping": shaping(rate) if rate and site.placement == "virtual" else None,
    }


def runs_under_scorep(site: Site, levels: Mapping[str, Any]) -> bool:
    """Return whether a cell runs under Score-P: a full trace of an installed MPI program."""
    framework = load_framework(levels["framework"])
    installed = framework.environment in dict(site.installed)
    return site.scorep is not None and framework.mpi and installed and levels["trace"] == "full"


# Launchers that start ranks by a program without process management for MPI. Flux could do it with flux-pmix
# and PBS with mpirun; neither was tried.
LAUNCHERS_WITHOUT_MPI = {"pbs": "pbs_tmrsh", "flux": "flux submit"}


def reason_missing_at_site(site: Site, levels: Mapping[str, Any]) -> Note | None:
    """Return why a site cannot run cells with these levels, None if it can.

    Such runs stay in the design and are reported as `missing`; a cell that its framework cannot train at all
    stops the study (`plan.design.InfeasibleCell`).
    """
    name, device_kind = levels["framework"], device_kind_of(site, levels)
    if not site.can_run(name):
        return Note("framework-not-at-site", f"site {site.name} does not have {name}", framework=name)
    framework = load_framework(name)
    if not framework.adapter:
        text = f"site {site.name} cannot run {name}: its adapter is not written yet"
        return Note("no-adapter", text, framework=name)
    if not _is_available(framework.environment, site):
        keys = f"installed.{framework.environment} or images.brought.{framework.environment}"
        text = (
            f"{framework.environment} is not installed at site {site.name} (see {keys} in "
            "docs/reference/configuration.md)"
        )
        return Note("not-installed", text, environment=framework.environment)
    if reason := _outdated_package(name, site):
        return reason
    if framework.mpi and (starts := LAUNCHERS_WITHOUT_MPI.get(site.launcher)):
        text = f"site {site.name} starts ranks by {starts}, {name} needs srun or mpirun"
        return Note("no-mpi", text, framework=name, launcher=site.launcher, starts=starts)
    if reason := _reason_missing_device(site, framework, device_kind):
        return reason
    if levels["bandwidth"] and site.placement != "virtual":
        text = f"site {site.name} cannot set the rate of its links: only the virtual cluster can"
        return Note("no-link-rate", text, bandwidth=levels["bandwidth"])
    if reason := _reason_missing_arithmetic(site, levels, framework, device_kind):
        return reason
    model = levels["model"]
    if operators := _missing_operators(name, model, levels["dataset"], device_kind):
        text = f"{name} cannot compute {', '.join(operators)} of {model} on device {device_kind}"
        facts = {"framework": name, "model": model, "device": device_kind, "operators": operators}
        return Note("missing-operators", f"site {site.name}: {text}", **facts)
    if site.scorep and runs_under_scorep(site, levels) and scorep.version(site.scorep) is None:
        text = f"site {site.name} names Score-P in {site.scorep}, whose bin/scorep-config prints no version"
        return Note("no-scorep", text, scorep=site.scorep)
    if (compiler := levels["compiler"]) == "torch-compile" and site.deployment == "apptainer":
        text = f"site {site.name} trains in images, which have no compiler for {compiler}"
        return Note("no-compiler", text, compiler=compiler)
    return None


def _reason_missing_arithmetic(
    site: Site, levels: Mapping[str, Any], framework: Framework, device_kind: str
) -> Note | None:
    """Return why the site's devices lack a cell's precision, autotuning or attention, None if they do not."""
    if levels["precision"] == TF32 and device_kind != "cuda":
        text = f"site {site.name} cannot compute in tf32: only device cuda can"
        return Note("unsupported-precision", text, precision=TF32, device=device_kind)
    is_on_xla = framework.environment == JAX and device_kind == "cpu"
    if is_on_xla and levels["precision"] in COMPUTES_IN_BFLOAT16 and "tensor" in levels["parallelism"]:
        text = (
            f"site {site.name} trains on processors, for which XLA cannot compile sums of bfloat16 along a "
            "tensor axis"
        )
        return Note("unsupported-precision", text, precision=levels["precision"], device=device_kind)
    if levels["autotune"] == "none" and device_kind == "cpu":
        text = (
            f"site {site.name} trains on processors, where libraries time no algorithms: autotune=none is "
            "for accelerators"
        )
        return Note("no-autotuning", text, autotune="none", device=device_kind)
    if levels["attention"] == "unfused" and is_on_xla:
        text = (
            f"site {site.name} trains on processors, for which JAX has no fused attention: attention=unfused "
            "is its default there"
        )
        return Note("no-fused-attention", text, attention="unfused", device=device_kind)
    return None


def _reason_missing_device(site: Site, framework: Framework, device_kind: str) -> Note | None:
    """Return why a site cannot train with a framework on this kind of device, None if it can."""
    if device_kind == "hybrid" and not framework.heterogeneous:
        text = (
            f"{framework.name} cannot train on CPU cores and accelerators together: "
            f"{' and '.join(_heterogeneous_frameworks())} can"
        )
        return Note("no-hybrid", text, framework=framework.name, able=_heterogeneous_frameworks())
    if device_kind in ("cpu", "cuda") and device_kind not in framework.devices:
        text = f"{framework.name} does not train on device {device_kind}, which site {site.name} has"
        return Note("unsupported-device", text, framework=framework.name, device=device_kind)
    if device_kind != site.device != "cuda":
        together = " to train on together with its CPU cores" if device_kind == "hybrid" else ""
        return Note("no-accelerator", f"site {site.name} has no device cuda{together}", device=device_kind)
    if device_kind == "hybrid" and site.launcher == "flux":
        text = (
            f"site {site.name} starts ranks by flux submit, each with an accelerator, so that none can "
            "train on CPU cores"
        )
        return Note("no-hybrid-here", text, launcher=site.launcher)
    if site.rank_cores and (framework.mpi or framework.mirrored):
        text = (
            f"site {site.name} has ranks of different core counts (rank_cores), {framework.name} needs "
            "the same count for all"
        )
        return Note("heterogeneous-ranks", text, framework=framework.name)
    return None


def site_part(site: Site) -> dict[str, Any]:
    """Return the site's fields that affect a result; accounts, limits and paths do not."""
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
        **({"gpu_bind": site.scheduler.gpu_bind} if site.scheduler.gpu_bind else {}),
    }


@functools.cache
def _heterogeneous_frameworks() -> list[str]:
    """Return the frameworks that can train on heterogeneous ranks."""
    return [name for name in framework_names() if load_framework(name).heterogeneous]


@functools.cache
def _missing_operators(framework: str, model: str, dataset: str, device_kind: str) -> list[str]:
    """Return the kinds and settings of operators of a model that a framework lacks on a kind of device."""
    if not (missing := load_framework(framework).without.get(device_kind)):
        return []
    used = {name for op in model_graph(model, dataset).operators for name in (op.kind, *op.settings)}
    return sorted(used.intersection(missing))


@functools.cache
def _outdated_package(name: str, site: Site) -> Note | None:
    """Return why a package that a site has installed is too old for a framework, None if none is."""
    framework = load_framework(name)
    installation = dict(site.installed).get(framework.environment)
    versions = dict(installation.packages) if installation else {}
    for package, oldest in framework.oldest_packages.items():
        version = versions.get(package)
        if version and older(version, oldest):
            text = f"site {site.name} has {package} {version} installed, {name} needs {oldest} or newer"
            facts = {"framework": name, "package": package, "installed": version, "needed": oldest}
            return Note("too-old", text, **facts)
    return None


@functools.cache
def _is_available(environment: str, site: Site) -> bool:
    return read_environment(environment).available(site.realization)


@functools.cache
def software_digest(environment: str, site: Site) -> str:
    """Return the digest of an environment as the site has it."""
    return environment_digest(environment, site.variant, site.realization)


def rank_code(framework: str) -> list[Path]:
    """Return the code of a framework's ranks besides `models.graph`: worker, libraries, adapter.

    For a user-supplied command they are worker, the adapter of commands, and the files that the command
    names.
    """
    description = load_framework(framework)
    if description.command:
        return [RANKS / "worker", COMMAND_ADAPTER, *(CHECKOUT / file for file in description.command.files)]
    libraries = [LIBRARIES / f"{library}.py" for library in description.libraries]
    partitions_models = any(axes & {"pipeline", "tensor"} for axes in description.meshes)
    return [
        RANKS / "worker",
        *libraries,
        *([] if LIBRARIES_WITH_PRECISION.isdisjoint(description.libraries) else [PRECISION_CODE]),
        *(DIVISION_CODE if partitions_models else []),
        *(STRATEGY_CODE if description.strategies else []),
        FRAMEWORKS / framework,
    ]


def digest_rank_code(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the ranks' code, without DESCRIPTIVE_KEYS of framework.yaml."""
    return digest_sources(paths, ignored_keys=DESCRIPTIVE_KEYS)


@functools.cache
def code_digest(framework: str, model: str, dataset: str) -> str:
    """Return the SHA-256 of ranks' code and the model's graph; for a command, of its files and adapter.

    A user-supplied PyTorch module adds its files.
    """
    if command := load_framework(framework).command:
        return command_code_digest(command)
    code = digest_rank_code([*MODEL_CODE, *rank_code(framework)])
    if is_own_model(model):
        code += json.dumps(load_own_model(model).source_digests(), sort_keys=True)
    return digest_text(code + json.dumps(model_graph(model, dataset).to_json(), sort_keys=True))


def digests(site: Site, levels: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of environment, code and data of a run with these levels (64 hex digits each)."""
    framework, model, dataset = levels["framework"], levels["model"], levels["dataset"]
    command = load_framework(framework).command
    if command and not find_dataset(dataset):
        data = unregistered_data_digest(dataset, count_samples(command, dataset))
    else:
        data = data_digest(dataset)
    return {
        "environment_digest": software_digest(load_framework(framework).environment, site),
        "code_digest": code_digest(framework, model, dataset),
        "data_digest": data,
    }


@dataclass(frozen=True)
class PlannedRun:
    """A run as it is measured at a site: a `plan.design.Run` with its specification, digests and key.

    Attributes:
        study: Name of the study.
        site: Where the run is measured.
        spec: Everything its result depends on except software and data.
        digests: SHA-256 of software, code and data (64 hex digits each).
    """

    study: str
    site: Site
    spec: dict[str, Any]
    digests: dict[str, str]

    @cached_property
    def key(self) -> str:
        """First 12 hex digits of the SHA-256 over spec and digests."""
        return digest_text(json.dumps([self.spec, self.digests], sort_keys=True))[:12]

    @property
    def run_id(self) -> str:
        """Name of the run in the design."""
        return str(self.spec["run_id"])

    @property
    def framework(self) -> Framework:
        """The framework that trains."""
        return load_framework(self.spec["levels"]["framework"])

    @property
    def graph(self) -> Graph | None:
        """The graph of the model that ranks build, None for a user-supplied command."""
        if self.framework.command:
            return None
        return model_graph(self.spec["levels"]["model"], self.spec["levels"]["dataset"])

    @property
    def environment(self) -> Path:
        """The stamp (environment.json) of its environment."""
        return environment_of(self.site, self.framework)

    @property
    def data(self) -> Path | None:
        """The folder of the prepared data set, None for a command that reads none."""
        if self.framework.command and not self.framework.command.reads_data:
            return None
        return data_folder(self.site, self.spec["levels"]["dataset"])

    @property
    def read_paths(self) -> list[Path]:
        """Files and folders that ranks read, besides the scripts."""
        reads_checkout = self.framework.command or is_own_model(self.spec["levels"]["model"])
        return [*([self.data] if self.data else []), *([CHECKOUT] if reads_checkout else [])]

    def is_current(self) -> bool:
        """Return whether site, software, code and data are unchanged since the run was planned."""
        levels, fields = self.spec["levels"], [field.name for field in dataclasses.fields(Geometry)]
        geometry = Geometry(**{name: self.spec[name] for name in fields if name != "mesh"})
        now = self.spec | site_fields(self.site, levels, geometry)
        if command := self.framework.command:
            now |= command_fields(command)
        return PlannedRun(self.study, self.site, now, digests(self.site, levels)).key == self.key


def plan_run(study: Study, site: Site, run: Run) -> PlannedRun:
    """Return a run of a study with its specification and digests at a site."""
    return PlannedRun(study.name, site, spec(study, site, run), digests(site, run.levels))


def environment_of(site: Site, framework: Framework) -> Path:
    """Return the stamp of a framework's environment at a site."""
    return environment_stamp(site.cache, framework.environment, site.variant, site.realization)
