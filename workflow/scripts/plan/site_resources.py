"""Compute what a cell gets from its site: device, cores and link rate, as fields of its specification."""

from collections.abc import Mapping
from typing import Any

from declared.devices import stated_peak
from declared.frameworks import load_framework
from declared.site import Site
from declared.virtual import shaping
from environments import scorep
from plan.geometry import Geometry

GPU_HOST_CORES = 2  # CPU cores of a GPU rank on a node where another rank trains on CPU cores


def cores_per_rank(site: Site) -> int:
    """Return the cores of one replica: the machine's cores over the largest number of ranks on it.

    A replica has the same number of cores in all cells, so cells with fewer ranks leave cores idle.
    """
    ranks_on_a_machine = site.ranks_per_node * (site.nodes if site.placement == "emulated" else 1)
    return max(1, site.cores // ranks_on_a_machine)


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


def site_fields(site: Site, levels: Mapping[str, Any], geometry: Geometry) -> dict[str, Any]:
    """Return the fields of the site in the specification of a run with these levels."""
    cores = heterogeneous_resources(site, levels, geometry)
    return {
        **common_site_fields(site),
        **link_settings(site, levels),
        **(
            {"scorep": scorep.version(site.scorep)} if site.scorep and runs_under_scorep(site, levels) else {}
        ),
        # These override fields of `common_site_fields`: the cell can choose another device, and its ranks can
        # have several replicas or different core counts.
        "device": device_kind_of(site, levels),
        "cores_per_rank": max(cores.get("rank_cores", [cores_per_rank(site) * geometry.replicas_per_rank])),
        **cores,
    }


def device_kind_of(site: Site, levels: Mapping[str, Any]) -> str:
    """Return the kind of device that a cell with these levels trains on: cpu, cuda or hybrid."""
    return site.device if levels["device"] == "site" else str(levels["device"])


def link_rate(site: Site, levels: Mapping[str, Any]) -> float | None:
    """Return the nodes' link rate in each direction in bytes/s, None if neither levels nor site set one."""
    return levels["bandwidth"] * 1e6 / 8 or site.bandwidth_bytes_s


def device_peak(site: Site, levels: Mapping[str, Any]) -> float | None:
    """Return the peak of a device in FLOP/s that the site states for the cell's precision, or None.

    The peak of a CPU rank is proportional to its cores, or to the CPU quota of its virtual node.
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


def common_site_fields(site: Site) -> dict[str, Any]:
    """Return the fields that all runs at a site share: what affects results, not accounts or paths."""
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
