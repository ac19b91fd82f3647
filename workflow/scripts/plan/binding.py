"""What the results of a study belong to: the first run ties results/<study> to a site, and to the machine where the site is one.

The name of a machine may change, as that of a container does: it is the same machine if /etc/machine-id and the processor are. Where these
change, too, `python -m plan.binding STUDY` states that it is the same.
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError, refuse_machine_error
from common.files import create_json, node_name, read_json, write_json
from common.options import run_program
from declared.site import Site, load_site

BINDING = "campaign.json"
KINDS = {"site": str, "machine": str | None, "cores": int, "python_abi": str}
MACHINE_ID = "machine_id"  # beside them, absent in older campaigns
INSTALLED = "installed"  # beside them: what the site had installed when something was measured the last time


def place(site: Site) -> dict[str, Any]:
    """What results are bound to: the site, the machine where the site is one, and what was found there."""
    machine = node_name() if site.launcher == "local" else None
    return {"site": site.name, "machine": machine, "cores": site.cores, "python_abi": site.python_abi}


def machine_id(file: Path = Path("/etc/machine-id"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return what tells this machine from others whatever its name is, as 16 hex digits; None where the system does not say.

    The number itself is confidential (machine-id(5)), so that a digest of it and of the processor is kept.
    """
    try:
        number = file.read_text(errors="replace").strip()
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return None
    models = sorted({line for line in lines if line.startswith(("model name", "CPU part"))})
    return hashlib.sha256("\n".join([number, *models]).encode()).hexdigest()[:16] if number else None


def bind(results: Path, study: str, site: Site) -> None:
    """Tie `results` to this place, once and for all, before anything is measured. InputError when they belong to another.

    Of two campaigns that come at the same moment one finds that it was second.
    """
    contents = {name: has.content for name, has in site.installed if has.content}
    if not check_bound(results, site):
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        bound_to = {**place(site), MACHINE_ID: machine_id() if site.launcher == "local" else None}
        create_json(results / BINDING, {**bound_to, INSTALLED: contents, "study": study, "bound_at": now})
        check_bound(results, site)
    bound = read_json(results / BINDING)
    if bound.get(INSTALLED, {}) != contents:
        write_json(results / BINDING, {**bound, INSTALLED: contents})


def as_bound(site: Site, bound: Mapping[str, Any]) -> Site:
    """The site as it was found where the results were made."""
    installed = tuple((name, replace(has, content=bound[INSTALLED].get(name))) for name, has in site.installed)
    return replace(site, cores=bound["cores"], python_abi=bound["python_abi"], installed=installed)


def check_bound(results: Path, site: Site) -> bool:
    """Whether `results` are bound already. InputError when it is to another place."""
    if bound := read_binding(results):
        check_place(bound, site, results)
    return bound is not None


def read_binding(results: Path) -> dict[str, Any] | None:
    """The place that results/<study> is bound to; None where nothing has run."""
    file = results / BINDING
    if not file.exists():
        return None
    try:
        bound = read_json(file)
        if all(isinstance(bound[key], kind) for key, kind in KINDS.items()):
            optional = {INSTALLED: dict(bound.get(INSTALLED, {})), MACHINE_ID: bound.get(MACHINE_ID)}
            return {key: bound[key] for key in KINDS} | optional
    except (OSError, ValueError, TypeError, KeyError) as error:
        refuse_machine_error(error, file)
    raise InputError(
        "broken-file", "is broken", file=file, expected=list(KINDS), hint="remove it if the results were made here"
    )


def check_place(bound: Mapping[str, Any], site: Site, results: Path) -> None:
    """InputError when `results` are bound to another place than this one, and runs would be added to them."""
    here = place(site)
    differ = [key for key in here if bound[key] != here[key]]
    if "machine" in differ and bound.get(MACHINE_ID) and bound[MACHINE_ID] == machine_id():
        differ.remove("machine")
    told = ["site"] if "site" in differ else differ  # another site has other machines, that says nothing more
    said = [f"{key} {_said(bound[key])}, here it is {_said(here[key])}" for key in told]
    if said:
        raise InputError(
            "other-place",
            f"these results belong to {'; '.join(said)}",
            file=results / BINDING,
            got={key: bound[key] for key in told},
            hint="for figures of them: ./ringside run --records available, or add --config records=available to snakemake; "
            f"for the cost here: ./ringside plan; to run here, move {results} away"
            + (
                f"; if it is the same machine: .venv/bin/python -m plan.binding {results.name}"
                if told == ["machine"]
                else ""
            ),
        )


def _said(value: Any) -> str:
    return "one of a cluster" if value is None else str(value)


def rebind(results: Path) -> None:
    """Note that this machine is the one that `results` were measured on. InputError where something else differs, too."""
    bound = read_binding(results)
    if bound is None:
        raise InputError("missing-file", "no such file", file=results / BINDING, hint="nothing has run in this study")
    site = load_site(bound["site"])
    here = place(site)
    check_place({**bound, "machine": here["machine"]}, site, results)
    stored = read_json(results / BINDING)
    write_json(results / BINDING, {**stored, "machine": here["machine"], MACHINE_ID: machine_id()})


def main(study: str) -> None:
    """State that this is the machine that the results of a study were measured on, under another name.

    Args:
        study: name of a folder in results/
    """
    rebind(Path("results") / study)


if __name__ == "__main__":
    sys.exit(run_program(main))
