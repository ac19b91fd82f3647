"""Explain why a site cannot run a cell: it lacks the framework, device, arithmetic or operator.

Such a run stays in the design and is reported as `missing`. A cell that its framework cannot train at any
site stops the study instead (plan.cell_checks).
"""

import functools
from collections.abc import Mapping
from typing import Any

from common.notes import Note
from declared.environments import is_older
from declared.environments import read as read_environment
from declared.frameworks import JAX_ENVIRONMENT, Framework, framework_names, load_framework
from declared.models import model_graph
from declared.site import Site
from environments import scorep
from models.precision import COMPUTES_IN_BFLOAT16, TF32
from plan.site_resources import device_kind_of, runs_under_scorep

# Launchers that start ranks without the process management (PMI) that MPI needs. Flux has it with flux-pmix,
# and PBS can use mpirun; neither has been tried.
LAUNCHERS_WITHOUT_MPI = {"pbs": "pbs_tmrsh", "flux": "flux submit"}


def unsupported_reason(site: Site, levels: Mapping[str, Any]) -> Note | None:
    """Return why a site cannot run cells with these levels, None if it can."""
    name, device_kind = levels["framework"], device_kind_of(site, levels)
    if not site.can_run(name):
        return Note("framework-not-at-site", f"site {site.name} does not have {name}", framework=name)
    framework = load_framework(name)
    if not framework.has_adapter:
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
    if reason := _reason_unsupported_on_device(site, levels, framework, device_kind):
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


def _reason_unsupported_on_device(
    site: Site, levels: Mapping[str, Any], framework: Framework, device_kind: str
) -> Note | None:
    """Return why the device cannot compute with a cell's precision, autotune or attention, None if it can."""
    if levels["precision"] == TF32 and device_kind != "cuda":
        text = f"site {site.name} cannot compute in tf32: only device cuda can"
        return Note("unsupported-precision", text, precision=TF32, device=device_kind)
    is_on_xla = framework.environment == JAX_ENVIRONMENT and device_kind == "cpu"
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


@functools.cache
def _heterogeneous_frameworks() -> list[str]:
    """Return the frameworks that can train on heterogeneous ranks."""
    return [name for name in framework_names() if load_framework(name).heterogeneous]


@functools.cache
def _missing_operators(framework: str, model: str, dataset: str, device_kind: str) -> list[str]:
    """Return the operators of a model, or their settings, that a framework lacks on a kind of device."""
    if not (missing := load_framework(framework).missing_operators.get(device_kind)):
        return []
    used = {name for op in model_graph(model, dataset).operators for name in (op.kind, *op.settings)}
    return sorted(used.intersection(missing))


@functools.cache
def _outdated_package(name: str, site: Site) -> Note | None:
    """Return why an installed package of the site is too old for a framework, None if none is too old."""
    framework = load_framework(name)
    installation = dict(site.installed).get(framework.environment)
    versions = dict(installation.packages) if installation else {}
    for package, oldest in framework.oldest_packages.items():
        version = versions.get(package)
        if version and is_older(version, oldest):
            text = f"site {site.name} has {package} {version} installed, {name} needs {oldest} or newer"
            facts = {"framework": name, "package": package, "installed": version, "needed": oldest}
            return Note("too-old", text, **facts)
    return None


@functools.cache
def _is_available(environment: str, site: Site) -> bool:
    return read_environment(environment).available(site.realization)
