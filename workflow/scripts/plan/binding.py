"""What the results of a study belong to: the first run ties results/<study> to a site, and to the machine where the site is one."""

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import create_json, write_json
from declared.site import Site

BINDING = "campaign.json"
KINDS = {"site": str, "machine": str | None, "cores": int, "python_abi": str}
INSTALLED = "installed"  # beside them: what the site had installed when something was measured the last time


def place(site: Site) -> dict[str, Any]:
    """What results are bound to: the site, the machine where the site is one, and what was found there."""
    machine = socket.gethostname() if site.launcher == "local" else None
    return {"site": site.name, "machine": machine, "cores": site.cores, "python_abi": site.python_abi}


def bind(results: Path, study: str, site: Site) -> None:
    """Tie `results` to this place, once and for all, before anything is measured. InputError when they belong to another.

    Of two campaigns that come at the same moment one finds that it was second.
    """
    contents = {name: has.content for name, has in site.installed if has.content}
    if not check_bound(results, site):
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        create_json(results / BINDING, {**place(site), INSTALLED: contents, "study": study, "bound_at": now})
        check_bound(results, site)
    bound = json.loads((results / BINDING).read_text())
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
        bound = json.loads(file.read_text())
        if all(isinstance(bound[key], kind) for key, kind in KINDS.items()):
            return {key: bound[key] for key in KINDS} | {INSTALLED: dict(bound.get(INSTALLED, {}))}
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise InputError(
        "broken-file", "is broken", file=file, expected=list(KINDS), hint="remove it if the results were made here"
    )


def check_place(bound: Mapping[str, Any], site: Site, results: Path) -> None:
    """InputError when `results` are bound to another place than this one, and runs would be added to them."""
    here = place(site)
    differ = [key for key in here if bound[key] != here[key]]
    told = ["site"] if "site" in differ else differ  # another site has other machines, that says nothing more
    said = [f"{key} {_said(bound[key])}, here it is {_said(here[key])}" for key in told]
    if said:
        raise InputError(
            "other-place",
            f"these results belong to {'; '.join(said)}",
            file=results / BINDING,
            got={key: bound[key] for key in told},
            hint="for figures of them: make figures ARGS=records=available, or add --config records=available to snakemake; "
            f"for the cost here: make plan; to run here, move {results} away",
        )


def _said(value: Any) -> str:
    return "one of a cluster" if value is None else str(value)
