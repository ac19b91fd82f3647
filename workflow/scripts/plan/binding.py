"""Bind results/<study> to the site of its first run, and with launcher local to its machine.

A machine whose name changed, such as a container, is recognized by /etc/machine-id and the processor.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError, raise_if_machine_error
from common.files import create_json, node_name, read_json, write_json
from declared.site import Site

BINDING = "campaign.json"
KINDS = {"site": str, "machine": str | None, "cores": int, "python_abi": str}
MACHINE_ID = "machine_id"  # absent in older campaigns
INSTALLED = "installed"  # contents of the site's installed software at the last measurement


def describe_place(site: Site) -> dict[str, Any]:
    """Return what results are bound to: site, machine (None on a cluster), cores and Python ABI."""
    machine = node_name() if site.launcher == "local" else None
    return {"site": site.name, "machine": machine, "cores": site.cores, "python_abi": site.python_abi}


def machine_id(file: Path = Path("/etc/machine-id"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return 16 hex digits that identify this machine whatever its name, None without a machine ID.

    The machine ID is confidential (machine-id(5)), so that only a digest of it and of the processor is
    stored.
    """
    try:
        number = file.read_text(errors="replace").strip()
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    models = sorted({line for line in lines if line.startswith(("model name", "CPU part"))})
    return hashlib.sha256("\n".join([number, *models]).encode()).hexdigest()[:16] if number else None


def bind_results(results: Path, study: str, site: Site) -> None:
    """Bind `results` to this site and machine before the first measurement.

    The file is created exclusively, so that only one of two concurrent campaigns binds the results.

    Raises:
        InputError: If the results belong to another site or machine.
    """
    contents = {name: installation.content for name, installation in site.installed if installation.content}
    if not check_bound(results, site):
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        bound_to = {**describe_place(site), MACHINE_ID: machine_id() if site.launcher == "local" else None}
        create_json(results / BINDING, {**bound_to, INSTALLED: contents, "study": study, "bound_at": now})
        check_bound(results, site)
    bound = read_json(results / BINDING)
    if bound.get(INSTALLED, {}) != contents:
        write_json(results / BINDING, {**bound, INSTALLED: contents})


def restore_site(site: Site, bound: Mapping[str, Any]) -> Site:
    """Return the site with the cores and the software that it had when the results were measured."""
    installed = tuple(
        (name, replace(installation, content=bound[INSTALLED].get(name)))
        for name, installation in site.installed
    )
    return replace(site, cores=bound["cores"], python_abi=bound["python_abi"], installed=installed)


def check_bound(results: Path, site: Site) -> bool:
    """Return whether `results` are bound.

    Raises:
        InputError: If they are bound to another site or machine.
    """
    if bound := read_binding(results):
        check_place(bound, site, results)
    return bound is not None


def read_binding(results: Path) -> dict[str, Any] | None:
    """Return the binding of results/<study>, None if nothing has run."""
    file = results / BINDING
    if not file.exists():
        return None
    try:
        bound = read_json(file)
        if all(isinstance(bound[key], kind) for key, kind in KINDS.items()):
            optional = {INSTALLED: dict(bound.get(INSTALLED, {})), MACHINE_ID: bound.get(MACHINE_ID)}
            return {key: bound[key] for key in KINDS} | optional
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise_if_machine_error(error, file)
    problem = "is broken"
    hint = "remove it if the results were measured here"
    raise InputError("broken-file", problem, file=file, expected=list(KINDS), hint=hint)


def check_place(bound: Mapping[str, Any], site: Site, results: Path) -> None:
    """Raise InputError if `results`, to which runs would be added, are bound to another site or machine."""
    current = describe_place(site)
    differ = [key for key in current if bound[key] != current[key]]
    if "machine" in differ and bound.get(MACHINE_ID) and bound[MACHINE_ID] == machine_id():
        differ.remove("machine")
    keys = ["site"] if "site" in differ else differ  # another site has other machines anyway
    differences = [
        f"{key} {_format_value(bound[key])}, here it is {_format_value(current[key])}" for key in keys
    ]
    if differences:
        at_their_site = f"to continue there: --site {bound['site']}; " if keys == ["site"] else ""
        if_same = (
            f"; if it is the same machine: set machine to {current['machine']} in {results / BINDING}"
            if keys == ["machine"]
            else ""
        )
        raise InputError(
            "other-place",
            f"these results belong to {'; '.join(differences)}",
            file=results / BINDING,
            got={key: bound[key] for key in keys},
            hint=f"{at_their_site}to draw them: --records available (Snakemake: --config records=available); "
            f"to measure here, move {results} away{if_same}",
        )


def raise_if_other_site(results: Path, site: str) -> None:
    """Raise InputError if `results`, which are only read, are bound to another site than the named one."""
    bound = read_binding(results)
    if site and bound and bound["site"] != site:
        problem = f"these results belong to site {bound['site']}, not {site}"
        hint = f"use --site {bound['site']}, or no --site"
        raise InputError(
            "other-place", problem, file=results / BINDING, got={"site": bound["site"]}, hint=hint
        )


def _format_value(value: object) -> str:
    return "one of a cluster" if value is None else str(value)
