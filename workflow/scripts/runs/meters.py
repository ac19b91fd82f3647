"""What is told of a run's energy once its ranks have ended: meters of all machines, wattmeters, the scheduler, power over time, idle power."""

import contextlib
import csv
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import create_json, read_json, utc, write_json, written_whole
from common.notes import Note
from declared.site import Site, Wattmeter
from launchers import launch
from ranks.worker.energy import SCOPES, Kind, entry, packages, together
from ranks.worker.meter import COLUMNS
from runs import wattmeter
from runs.epochs import read_epochs, read_lines

POWER = ("t", "host", "scope", "watt")
IDLE = "ranks.worker.idle"
NODE = "energy_node_j"
MAX_CLOCK_STEP_S = 1.0  # of the clock by which wattmeters are asked for a run
_UNKNOWN = Kind(wattmeter.SOURCE, wattmeter.SCOPE, "power", 1.0, None, None)


def read_after(folder: Path, spec: Mapping[str, Any], site: Site, ranks: launch.Launcher) -> list[dict[str, Any]]:
    """The meters of a run whose ranks have ended well, as its record lists them. Leaves power.csv, and the wattmeters' joules in epochs.csv."""
    result = json.loads((folder / "result.json").read_text())
    leaders = _one_of_each_machine(result["ranks"])
    told = together((rank["host"], rank["meters"]) for _, rank in leaders)
    power = _of_nodes(folder, leaders)
    if site.energy:
        nodes = wattmeter.nodes_of([rank["host"] for rank in result["ranks"]])
        windows = _windows(read_epochs(folder / "epochs.csv"), spec["samples_per_epoch"], result["closed_at"])
        step_s = result["clock_step_s"]
        kind, values, reasons, samples = _asked(site.energy, nodes, windows, step_s=step_s)
        _fill_in(folder / "epochs.csv", NODE, values)
        told.append(entry(kind, "; ".join(reasons) or None))
        power += [(t, node, wattmeter.SCOPE, watt) for node, rows in samples.items() for t, watt in rows.tolist()]
    if power:
        with written_whole(folder / "power.csv") as partial, open(partial, "w", newline="") as table:
            writer = csv.writer(table, lineterminator="\n")
            writer.writerow(POWER)
            writer.writerows((f"{t:.3f}", host, scope, f"{watt:.6g}") for t, host, scope, watt in sorted(power))
    return told + launch.scheduler_meters(site, ranks)


def _one_of_each_machine(ranks: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """The ranks that read meters, with their numbers; of nodes that are one machine the first."""
    found: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, rank in enumerate(ranks):
        if rank["meters"] is not None:
            found.setdefault(rank["machine"], (number, rank))
    return list(found.values())


def _of_nodes(folder: Path, leaders: Sequence[tuple[int, Mapping[str, Any]]]) -> list[tuple[float, str, str, float]]:
    """What nodes wrote of their power while they trained; a last line may be cut off."""
    found = []
    for number, rank in leaders:
        if (file := folder / f"power-{number}.csv").exists():
            for line in file.read_text().splitlines()[1:]:
                with contextlib.suppress(ValueError):
                    t, scope, watt = line.split(",")
                    found.append((float(t), rank["host"], scope, float(watt)))
    return found


def _windows(epochs: Sequence[Mapping[str, Any]], samples: int, closed_at: float) -> list[tuple[float, float]]:
    """When each epoch began and ended, Unix time in s; one whose end nobody told ends when the next one begins.

    Times in epochs.csv are for the data set's number of `samples`; those here are what went by.
    """
    opened = [row["opened_at"] for row in epochs]
    return [
        (start, start + row["closed_time_s"] * row["samples_trained"] / samples if row["closed_time_s"] else following)
        for row, start, following in zip(epochs, opened, [*opened[1:], closed_at], strict=True)
    ]


def _asked(
    meter: Wattmeter,
    nodes: Sequence[str],
    windows: Sequence[tuple[float, float]],
    what: str = "an epoch",
    step_s: float = 0.0,
) -> tuple[Kind, list[float | None], list[Note], wattmeter.Samples]:
    """What the wattmeters are, their joules of each window, why one has none or samples were refused, and the samples that were not.

    `step_s`: by how much the clock was set that says when the windows were.
    """
    if not windows:
        return _UNKNOWN, [], [Note("no-epoch", "the run has no epoch")], {}
    if abs(step_s) > MAX_CLOCK_STEP_S:
        reason = Note("clock-set", f"the clock was set by {step_s:+.1f} s during the run", step_s=step_s)
        return _UNKNOWN, [None] * len(windows), [reason], {}
    try:
        samples = wattmeter.ask(meter, nodes, windows[0][0], windows[-1][1])
        kind = wattmeter.kind(meter, samples)
    except wattmeter.Away as away:
        return _UNKNOWN, [None] * len(windows), [away.reason], {}
    read = wattmeter.readings(samples)
    told = [wattmeter.joules(kind, read, nodes, *window, what) for window in windows]
    reasons = [*(why for _, why in told if why)][:1] + [why for why in [wattmeter.refused(samples)] if why]
    return kind, [value for value, _ in told], reasons, read


def _fill_in(table: Path, column: str, values: Sequence[float | None]) -> None:
    """Write a column of an attempt's epochs.csv, which its ranks left empty."""
    place, lines = COLUMNS.index(column), read_lines(table)
    with written_whole(table) as partial:
        made = [",".join(COLUMNS)]
        for line, value in zip(lines, values, strict=True):
            fields = line.split(",")
            fields[place] = "" if value is None else repr(value)
            made.append(",".join(fields))
        partial.write_text("\n".join([*made, ""]), encoding="ascii")


def idle_power(
    results: Path,
    session: str,
    site: Site,
    spec: Mapping[str, Any],
    environment: Mapping[str, Any],
    launcher: Callable[[], launch.Launcher],
) -> dict[str, float | None] | None:
    """Scope -> mean power in W of what idles: an accelerator, the packages of a machine, a node. Measured before a session's first run and
    kept in results/<study>/idle/<session>/<device>/; None where nothing here has a meter."""
    if not (site.energy or spec["device"] != "cpu" or _has_packages()):
        return None
    folder = results / "idle" / session / spec["device"]
    file = folder / "idle.json"
    if not file.exists():
        for earlier in (results / "idle").glob("*"):
            if earlier.name != session:
                launch.forget_variables(earlier)
        folder.mkdir(parents=True, exist_ok=True)
        attempt = Path(tempfile.mkdtemp(prefix="attempt-", dir=folder))  # jobs of one session may begin at once
        made = _idle(attempt, site, spec, environment, launcher())
        if not made["hosts"]:
            return made["watts"]  # the next run tries again
        create_json(file, made)
    watts: dict[str, float | None] = read_json(file)["watts"]
    return watts


def _has_packages() -> bool:
    """Whether processors here have meters that can be looked at."""
    try:
        return bool(packages())
    except (OSError, ValueError):
        return False


def _idle(
    folder: Path, site: Site, spec: Mapping[str, Any], environment: Mapping[str, Any], ranks: launch.Launcher
) -> dict[str, Any]:
    """What idle.json says: when, of which hosts, mean powers by scope, and all meters."""
    write_json(folder / "spec.json", {"spec": spec, "hosts": list(ranks.hosts)})
    began_at = time.time()
    outcome = launch.run(ranks, environment, folder.resolve(), spec, site, program=IDLE)
    nothing: dict[str, float | None] = dict.fromkeys(SCOPES)
    if outcome.status != "ok" or not (folder / "result.json").exists():
        return {"at": utc(began_at), "hosts": [], "watts": nothing, "meters": [], "reason": outcome.reason}
    said = read_json(folder / "result.json")
    machines = list({node["machine"]: node for node in said["nodes"]}.values())
    watts = nothing | {scope: _mean([node["watts"].get(scope) for node in machines]) for scope in ("device", "package")}
    meters = together((node["host"], node["meters"]) for node in machines)
    if site.energy:
        nodes, window = (
            wattmeter.nodes_of([node["host"] for node in said["nodes"]]),
            (said["began_at"], said["ended_at"]),
        )
        kind, (value,), reasons, _ = _asked(site.energy, nodes, [window], "the time")
        watts[wattmeter.SCOPE] = None if value is None else value / (window[1] - window[0]) / len(nodes)
        meters.append(entry(kind, "; ".join(reasons) or None))
    hosts = [node["host"] for node in said["nodes"]]
    return {"at": utc(said["began_at"]), "hosts": hosts, "watts": watts, "meters": meters, "reason": None}


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return sum(told) / len(told) if told and len(told) == len(values) else None
