"""What is measured beside runs, alone on its nodes: sweeps of the network, timings of parts and messages. One from launch to its record.

One that fails is data, not a crash: whatever becomes of the ranks, a record is written and the exit status is 0. Another status means that
the infrastructure was lost, or that the program was stopped or asked for something impossible. A record that is removed is made again: from
a finished attempt that succeeded, otherwise by a new attempt.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from common.errors import InputError, refuse_machine_error
from common.notes import Note
from common.schemas import check
from declared.site import Site
from declared.study import Study
from environments.built import read_built
from launchers import launch
from plan.binding import bind_results, check_bound
from plan.design import Run
from plan.identity import environment_of
from plan.specs import changed_since_planned
from runs import attempts
from runs.progress import current_session
from runs.supervise import ending_well, spoiled

Attempt = Callable[[Mapping[str, Any], launch.Launcher, Path], dict[str, Any]]


class Measurement(Protocol):
    """What a plan wants measured; `run`: one of the design that is laid out like it."""

    @property
    def run(self) -> Run:
        """See the class."""

    @property
    def name(self) -> str:
        """Among all of its kind."""


def settle(
    kind: str,
    one: Measurement,
    spec: Mapping[str, Any],
    out: Path,
    study: Study,
    site: Site,
    results: Path,
    attempt: Attempt,
) -> dict[str, Any]:
    """Make and return the content of `out`, the record of a sweep or a timing (`kind`), in `results` (results/<study>)."""
    folder = out.parent
    with attempts.exclusive(folder, f"{kind} {one.name}"):
        done = attempts.finished(folder)
        if done is None or attempts.read_record(done)["status"] != "ok":
            environment = read_built(environment_of(site, one.run.framework))
            ranks = launch.launcher(site, spec, setup=environment.get("setup", ()))
            bind_results(results, study.name, site)
            with attempts.new_attempt(folder) as done:
                record = attempt(environment, ranks, done) | {"session": current_session()}
                attempts.finish(done, record, kind)
        return attempts.publish(done, out.name)


def read(file: Path, kind: str) -> dict[str, Any]:
    """The record of a sweep or a timing, checked. InputError in one line where it is broken."""
    try:
        record: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        refuse_machine_error(error, file)
        hint = f"remove {file.parent} and start again"
        raise InputError("broken-file", f"is broken ({error})", file=file, hint=hint) from None
    check(record, kind, file)
    return record


def left(folder: Path) -> dict[str, Any] | None:
    """What the ranks left; None where they did not come to an end."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return result


def judge(
    outcome: launch.Outcome, result: Mapping[str, Any] | None, site: Site, hosts: Sequence[str]
) -> tuple[str, Note | None]:
    """Status and reason of an attempt. `result` is what the ranks left, `hosts` the nodes that it was started on."""
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if result is None:
        return "failed", Note("no-result", "ended without a result")
    found = list(dict.fromkeys(rank["host"] for rank in result["ranks"]))
    machines = len({rank["machine"] for rank in result["ranks"]})
    shares = result["foreign_cpu_share"], 0.0  # of a hypervisor these ranks tell nothing
    said = spoiled(found, machines, hosts, shares, site)
    return ("invalid", said) if said else ("ok", None)


def named(kind: str, planned: Sequence[Any], name: str, study: Study) -> Any:
    """The one of this name. InputError where the study has none."""
    for one in planned:
        if one.name == name:
            return one
    problem = f"has no {kind} {name} any more"
    raise InputError("changed-since-planned", problem, file=study.file.name, got=name, hint="start Snakemake again")


def carry_out(what: str, key: str, expected: str, out: Path, site: Site, measure: Callable[[Path], object]) -> None:
    """Have `measure` write the record `out`, given results/<study>. InputError where the key is not the one that the caller expects."""
    if key != expected:
        raise changed_since_planned(what, expected)
    with ending_well(what, out):
        results = out.parents[3]
        check_bound(results, site)
        measure(results)
