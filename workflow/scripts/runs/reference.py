"""How quick the nodes of a run are right before and right after it: a fixed piece of work, in the cores of its ranks.

The work is a program of its own (ranks/reference_work.py), started by the site's launcher as ranks are. What becomes of it fails no
run: a time is missing then, and the record says why.
"""

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.files import read_json, write_json
from common.notes import Note
from declared.site import Site
from launchers import launch

PROGRAM = "ranks.reference_work"
TIME_LIMIT_S = 60.0  # where it takes 0.3 s
PAUSE_S = 10.0  # from one look to the next while a run waits
LEAST_KNOWN = 6  # times, before one can be called unusual
LEAST_MARGIN = 0.05  # of the usual time: what is less above it is not worth waiting
SIGMAS = 3.0
QUARTILE = 0.6745  # standard deviations from the median of a normal distribution to its quartiles


@dataclass(frozen=True)
class Took:
    """The work, done once: its kind with its version, and by host the seconds until the slowest rank of the node had done its part.
    Where it failed `times` is None, and `reason` says why."""

    kind: str | None
    times: Mapping[str, float] | None
    reason: Note | None

    @property
    def slowest_s(self) -> float | None:
        """The time of the slowest node, for which training waits, s; None where it failed."""
        return max(self.times.values()) if self.times else None


@dataclass(frozen=True)
class Band:
    """What the work usually takes, and up to when that counts as usual, in s."""

    usual_s: float
    most_s: float


def band(known: Sequence[float]) -> Band | None:
    """The usual band of times in s; None where too few are known.

    Disturbances only ever add time. So the spread is that of the quicker half, the median less the lower quartile, which for normal
    times is 0.6745 standard deviations; the band ends three of them above the median, and at least 5 %.
    """
    if len(known) < LEAST_KNOWN:
        return None
    lower, median, _ = statistics.quantiles(known, n=4, method="inclusive")
    return Band(median, median + max(SIGMAS * (median - lower) / QUARTILE, LEAST_MARGIN * median))


def geometry(spec: Mapping[str, Any]) -> str:
    """Where the work is done, such as 2 x 1 x 4: nodes, ranks of each, cores of each rank. Times are compared where it is the same."""
    cores = spec.get("rank_cores", [spec["cores_per_rank"]])
    return f"{spec['nodes']} x {min(spec['ranks'], spec['ranks_per_node'])} x {'+'.join(map(str, cores))}"


def earlier(results: Path, of_geometry: str, environment_digest: str) -> Iterator[tuple[str, float]]:
    """Kind and time (s, of the slowest node) of all that the campaign's records have of this geometry and environment, whose numpy does the
    work; `results`: results/<study>."""
    for file in (results / "runs").glob("*/*/record.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = read_json(file)
            said = record["reference"]
            if (said["geometry"], record["environment_digest"]) == (of_geometry, environment_digest):
                yield from ((said["kind"], max(said[end].values())) for end in ("before", "after") if said[end])


def work(
    folder: Path,
    spec: Mapping[str, Any],
    modules: Sequence[str],
    environment: Mapping[str, Any],
    ranks: Callable[[], launch.Launcher],
    site: Site,
) -> Took:
    """Do the work once, by the launcher that `ranks` makes. `folder` is its own; it stays only where the work failed, with its log.

    May raise Stopped and Lost.
    """
    try:
        folder.mkdir()
        launcher = ranks()
        told = {name: value for name, value in spec.items() if name not in ("levels", "steps")}  # nothing is traced
        write_json(folder / "spec.json", {"spec": told, "modules": list(modules), "hosts": list(launcher.hosts)})
        limited = replace(site, time_limit_s=min(TIME_LIMIT_S, site.time_limit_s))
        outcome = launch.run(launcher, environment, folder.resolve(), spec, limited, program=PROGRAM)
        if outcome.status != "ok":
            failed = outcome.reason or Note(outcome.status, outcome.status)
            return Took(None, None, Note(failed.code, f"{folder.name}: {failed}", **failed.facts))
        said = read_json(folder / "result.json")
        times: dict[str, float] = {}
        for host, took_s in said["ranks"]:
            times[host] = max(took_s, times.get(host, 0.0))
        shutil.rmtree(folder, ignore_errors=True)
        return Took(said["kind"], times, None)
    except (launch.Stopped, launch.Lost):
        raise
    except Exception as error:  # whatever it is, the run goes on
        text = f"{folder.name}: {type(error).__name__}: {error}"
        return Took(None, None, Note("program-error", text, error=type(error).__name__))


def before(
    look: Callable[[], Took],
    known: Callable[[], Sequence[tuple[str, float]]] = tuple,
    wait_s: float = 0.0,
    say: Callable[[Note], None] = print,
) -> dict[str, Any]:
    """What a record says of the work right before a run, which `look` does.

    With `wait_s` it is done again and again until it takes no longer than usual, or until the time is over. `known` are kinds and
    times of earlier work; `say` is told, once, what is waited for.
    """
    found, started = look(), time.monotonic()
    seen: list[float] = []
    usual = band([took_s for kind, took_s in known() if kind == found.kind]) if wait_s else None
    while (
        usual
        and found.slowest_s
        and found.slowest_s > usual.most_s
        and (left_s := started + wait_s - time.monotonic()) > 0
    ):
        if not seen:
            text = (
                f"waiting for a quiet machine, {wait_s:g} s at most: a fixed piece of work takes {found.slowest_s:.2f} s, usually "
                f"{usual.usual_s:.2f} s"
            )
            say(Note("waiting", text, wait_s=wait_s, took_s=found.slowest_s, usual_s=usual.usual_s))
        seen.append(found.slowest_s)
        time.sleep(min(PAUSE_S, left_s))
        found = look()
    return {
        "kind": found.kind,
        "before": found.times,
        "after": None,
        "reason": found.reason,
        "waited_s": time.monotonic() - started if seen else 0.0,
        "seen": seen,
    }


def after(look: Callable[[], Took], said: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of the work at both ends of a run, `said` being that of its start. What is lost now, the run was not."""
    try:
        found = look()
    except launch.Lost as lost:
        found = Took(None, None, Note("lost", f"lost: {lost}"))
    if None not in (found.kind, said["kind"]) and found.kind != said["kind"]:
        text = f"is {found.kind}, was {said['kind']}"
        found = Took(None, None, Note("other-kind", text, before=said["kind"], after=found.kind))
    reasons = [reason for reason in (said["reason"], found.reason) if reason]
    return {**said, "kind": said["kind"] or found.kind, "after": found.times, "reason": "; ".join(reasons) or None}
