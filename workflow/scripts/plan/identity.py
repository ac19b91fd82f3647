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
from datasets.identity import data_digest, data_folder
from declared.datasets import find_dataset
from declared.factors import has_largest_batch
from declared.frameworks import RANKS, Framework, library_path, load_framework
from declared.models import model_graph
from declared.site import Site
from declared.study import Study
from declared.user_models import is_user_model, load_user_model
from environments.identity import environment_digest, environment_stamp
from models import strategy
from models.graph import Graph
from plan.batch_sizes import batch_search_name
from plan.design import Run
from plan.geometry import Geometry
from plan.own_commands import command_code_digest, command_fields, count_samples, unregistered_data_digest
from plan.site_resources import site_fields

# Modules of `models` that ranks import: through the worker, which every framework has, and through libraries.
# A change to a module that is missing here would not change the keys of runs; a test compares the imports.
MODEL_MODULES = {
    "worker": ("graph", "initial", "mesh", "pipelines"),
    "pytorch": ("precision",),
    "tensorflow": ("precision",),
    "jax": ("precision",),
    "divided_weights": ("division",),
    "pytorch_mesh": ("division",),
    "pytorch_strategy": ("layout", "soap", "strategy"),
}
# Keys of framework.yaml that only describe a framework, so the digest of ranks' code leaves them out.
# A change to anything else in the file gives the framework's runs new keys. This includes `capabilities`,
# although ranks do not read them: a framework that learns a level has new code as well.
DESCRIPTIVE_KEYS = ("title", "oldest_packages", "refusal_reasons", "notes", "user_models")


def run_spec(study: Study, site: Site, run: Run) -> dict[str, Any]:
    """Return the specification of a run: all that its result depends on except environment, code and data."""
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
        **({"batch_search": batch_search_name(run.levels)} if has_largest_batch(run.levels) else {}),
    }


def strategy_fields(run: Run) -> dict[str, Any]:
    """Return the fields of a run's parallelization strategy in its specification, {} without a strategy."""
    if run.strategy is None:
        return {}
    return {"strategy": strategy.to_json(run.strategy), "bucket_bytes": list(run.bucket_bytes)}


def geometry_fields(geometry: Geometry) -> dict[str, Any]:
    """Return the fields of a geometry for a specification: without a mesh, or with the size of each axis."""
    fields = vars(geometry)
    return (
        {**fields, "mesh": geometry.mesh.sizes}
        if geometry.mesh
        else {k: v for k, v in fields.items() if k != "mesh"}
    )


@functools.cache
def site_environment_digest(environment: str, site: Site) -> str:
    """Return the digest of an environment as the site has it."""
    return environment_digest(environment, site.variant, site.realization)


def rank_code(framework: str) -> list[Path]:
    """Return the files and folders with the code of a framework's ranks, user models excepted.

    For a user-supplied command they are the worker, the adapter of commands, and the files that the command
    names.
    """
    description = load_framework(framework)
    users = ("worker", *description.libraries)
    models = sorted({module for user in users for module in MODEL_MODULES.get(user, ())})
    return [
        RANKS / "worker",
        *(RANKS.parent / "models" / f"{module}.py" for module in models),
        *map(library_path, description.libraries),
        description.folder,
        *(CHECKOUT / file for file in (description.command.files if description.command else ())),
    ]


def digest_rank_code(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the ranks' code, without DESCRIPTIVE_KEYS of framework.yaml."""
    return digest_sources(paths, ignored_keys=DESCRIPTIVE_KEYS)


@functools.cache
def code_digest(framework: str, model: str, dataset: str) -> str:
    """Return the SHA-256 of ranks' code and the model's graph; for a command, of its files and adapter.

    The files of a user model are part of it.
    """
    if command := load_framework(framework).command:
        return command_code_digest(command)
    code = digest_rank_code(rank_code(framework))
    if is_user_model(model):
        code += json.dumps(load_user_model(model).source_digests(), sort_keys=True)
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
        "environment_digest": site_environment_digest(load_framework(framework).environment, site),
        "code_digest": code_digest(framework, model, dataset),
        "data_digest": data,
    }


@dataclass(frozen=True)
class PlannedRun:
    """A run as it is measured at a site: a `plan.design.Run` with its specification, digests and key.

    Attributes:
        study: Name of the study.
        site: Where the run is measured.
        spec: Everything its result depends on except environment, code (with the model's graph) and data.
        digests: SHA-256 of environment, code and data (64 hex digits each).
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
        reads_checkout = self.framework.command or is_user_model(self.spec["levels"]["model"])
        return [*([self.data] if self.data else []), *([CHECKOUT] if reads_checkout else [])]

    def is_current(self) -> bool:
        """Return whether site, environment, code and data are unchanged since the run was planned."""
        levels, fields = self.spec["levels"], [field.name for field in dataclasses.fields(Geometry)]
        geometry = Geometry(**{name: self.spec[name] for name in fields if name != "mesh"})
        now = self.spec | site_fields(self.site, levels, geometry)
        if command := self.framework.command:
            now |= command_fields(command)
        return PlannedRun(self.study, self.site, now, digests(self.site, levels)).key == self.key


def plan_run(study: Study, site: Site, run: Run) -> PlannedRun:
    """Return a run of a study with its specification and digests at a site."""
    return PlannedRun(study.name, site, run_spec(study, site, run), digests(site, run.levels))


def environment_of(site: Site, framework: Framework) -> Path:
    """Return the stamp of a framework's environment at a site."""
    return environment_stamp(site.cache, framework.environment, site.variant, site.realization)
