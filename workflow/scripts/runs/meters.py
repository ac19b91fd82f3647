"""Collect energy, power over time and idle power of a run from meters, wattmeters and the scheduler."""

import contextlib
import csv
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import create_json, format_utc, read_json, write_json, written_whole
from common.notes import Note
from common.run_status import RunStatus
from declared.site import Site, Wattmeter
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import Launcher
from launchers.variables import forget_variables
from ranks.worker.energy import SCOPES, MeterKind, combine_meters, entry, packages
from ranks.worker.epoch_timer import COLUMNS
from runs import wattmeter
from runs.epochs import read_epochs, read_lines

POWER = ("t", "host", "scope", "watt")
IDLE = "ranks.worker.idle"
NODE = "energy_node_j"
NO_CLOCK = Note("no-clock", "the log of the command does not say when its epochs began")
MAX_CLOCK_STEP_S = 1.0  # largest step of the clock that dates epochs, if it is set during a run
_UNKNOWN = MeterKind(wattmeter.SOURCE, wattmeter.SCOPE, "power", 1.0, None, None)


def read_after(
    attempt_folder: Path, spec: Mapping[str, Any], site: Site, launcher: Launcher
) -> list[dict[str, Any]]:
    """Read the meters of a finished run, and return them for its record.

    Writes power.csv, and the joules of wattmeters into epochs.csv.
    """
    result = json.loads((attempt_folder / "result.json").read_text())
    leaders = _first_rank_of_each_machine(result["ranks"])
    entries = combine_meters((rank["host"], rank["meters"]) for _, rank in leaders)
    power = _read_node_power(attempt_folder, leaders)
    if site.energy:
        nodes = wattmeter.node_names([rank["host"] for rank in result["ranks"]])
        epochs = read_epochs(attempt_folder / "epochs.csv")
        if all(row["opened_at"] for row in epochs):
            windows = _windows(epochs, spec["samples_per_epoch"], result["closed_at"])
            step_s = result["clock_step_s"]
            kind, values, reasons, samples = _read_wattmeters(site.energy, nodes, windows, step_s=step_s)
        else:
            kind, values, reasons, samples = _UNKNOWN, [None] * len(epochs), [NO_CLOCK], {}
        _fill_column(attempt_folder / "epochs.csv", NODE, values)
        entries.append(entry(kind, "; ".join(reasons) or None))
        power += [
            (t, node, wattmeter.SCOPE, watt) for node, rows in samples.items() for t, watt in rows.tolist()
        ]
    if power:
        with written_whole(attempt_folder / "power.csv") as partial, open(partial, "w", newline="") as table:
            writer = csv.writer(table, lineterminator="\n")
            writer.writerow(POWER)
            writer.writerows(
                (f"{t:.3f}", host, scope, f"{watt:.6g}") for t, host, scope, watt in sorted(power)
            )
    return entries + launch.scheduler_meters(site, launcher)


def _first_rank_of_each_machine(ranks: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return number and result of each machine's first rank that reads meters."""
    leaders: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, rank in enumerate(ranks):
        if rank["meters"] is not None:
            leaders.setdefault(rank["machine"], (number, rank))
    return list(leaders.values())


def _read_node_power(
    attempt_folder: Path, leaders: Sequence[tuple[int, Mapping[str, Any]]]
) -> list[tuple[float, str, str, float]]:
    """Return the power samples that nodes wrote during training. The last line can be cut off."""
    samples = []
    for number, rank in leaders:
        if (file := attempt_folder / f"power-{number}.csv").exists():
            for line in file.read_text().splitlines()[1:]:
                with contextlib.suppress(ValueError):
                    t, scope, watt = line.split(",")
                    samples.append((float(t), rank["host"], scope, float(watt)))
    return samples


def _windows(
    epochs: Sequence[Mapping[str, Any]], samples: int, closed_at: float
) -> list[tuple[float, float]]:
    """Return start and end of each epoch, Unix time in s.

    An epoch without an end ends when the next one starts. Times in epochs.csv are scaled to the number of
    `samples` of the data set; the result has wall-clock times.
    """
    opened = [row["opened_at"] for row in epochs]
    return [
        (
            start,
            start + row["closed_time_s"] * row["samples_trained"] / samples
            if row["closed_time_s"]
            else following,
        )
        for row, start, following in zip(epochs, opened, [*opened[1:], closed_at], strict=True)
    ]


def _read_wattmeters(
    meter: Wattmeter,
    nodes: Sequence[str],
    windows: Sequence[tuple[float, float]],
    period: str = "an epoch",
    step_s: float = 0.0,
) -> tuple[MeterKind, list[float | None], list[Note], wattmeter.Samples]:
    """Ask the wattmeters for the energy of each window.

    Args:
        meter: The site's wattmeters.
        nodes: The nodes, under the names that the wattmeters know.
        windows: Start and end of each window, Unix time in s.
        period: Name of a window in messages.
        step_s: By how much the clock was set during the run, s.

    Returns:
        Kind of the meter, joules of each window (or None), reasons for missing values and samples, and valid
        samples.
    """
    if not windows:
        return _UNKNOWN, [], [Note("no-epoch", "the run has no epoch")], {}
    if abs(step_s) > MAX_CLOCK_STEP_S:
        reason = Note("clock-set", f"the clock was set by {step_s:+.1f} s during the run", step_s=step_s)
        return _UNKNOWN, [None] * len(windows), [reason], {}
    try:
        samples = wattmeter.request_samples(meter, nodes, windows[0][0], windows[-1][1])
        kind = wattmeter.describe_meter(meter, samples)
    except wattmeter.NoSamples as error:
        return _UNKNOWN, [None] * len(windows), [error.reason], {}
    read = wattmeter.valid_samples(samples)
    energies = [wattmeter.integrate(kind, read, nodes, *window, period) for window in windows]
    reasons = [reason for _, reason in energies if reason][:1]
    reasons += filter(None, [wattmeter.invalid_samples(samples)])
    return kind, [value for value, _ in energies], reasons, read


def _fill_column(table: Path, column: str, values: Sequence[float | None]) -> None:
    """Fill a column of an epochs.csv that the ranks left empty."""
    index, lines = COLUMNS.index(column), read_lines(table)
    with written_whole(table) as partial:
        rows = [",".join(COLUMNS)]
        for line, value in zip(lines, values, strict=True):
            fields = line.split(",")
            fields[index] = "" if value is None else repr(value)
            rows.append(",".join(fields))
        partial.write_text("\n".join([*rows, ""]), encoding="ascii")


def idle_power(
    results: Path, session: str, site: Site, spec: Mapping[str, Any], environment: BuiltEnvironment
) -> dict[str, float | None] | None:
    """Return the mean idle power in W of a GPU, a machine's CPU packages and a node, or None without a meter.

    It is measured before the first run of a session on a device, in results/<study>/idle/<session>/<device>/.
    """
    if not (site.energy or spec["device"] != "cpu" or _has_packages()):
        return None
    folder = results / "idle" / session / spec["device"]
    file = folder / "idle.json"
    if not file.exists():
        for earlier in (results / "idle").glob("*"):
            if earlier.name != session:
                forget_variables(earlier)
        folder.mkdir(parents=True, exist_ok=True)
        # Several jobs of a session can begin at the same time.
        attempt = Path(tempfile.mkdtemp(prefix="attempt-", dir=folder))
        result = _measure_idle_power(attempt, site, spec, environment)
        if not result["hosts"]:
            return result["watts"]  # the next run tries again
        create_json(file, result)
    watts: dict[str, float | None] = read_json(file)["watts"]
    return watts


def _has_packages() -> bool:
    """Return whether this machine's CPU packages have readable meters."""
    try:
        return bool(packages())
    except (OSError, ValueError):
        return False


def _measure_idle_power(
    folder: Path, site: Site, spec: Mapping[str, Any], environment: BuiltEnvironment
) -> dict[str, Any]:
    """Return the content of idle.json: time, hosts, mean power in W by scope, and all meters."""
    launcher = launch.make_step_launcher(site, spec, environment, "idle")
    write_json(folder / "rank_input.json", {"spec": spec, "hosts": list(launcher.hosts)})
    began_at = time.time()
    outcome = launch.run_ranks(launcher, environment, folder.resolve(), spec, site, program=IDLE)
    no_watts: dict[str, float | None] = dict.fromkeys(SCOPES)
    if outcome.status != RunStatus.OK or not (folder / "result.json").exists():
        return {
            "at": format_utc(began_at),
            "hosts": [],
            "watts": no_watts,
            "meters": [],
            "reason": outcome.reason,
        }
    measured = read_json(folder / "result.json")
    machines = list({node["machine"]: node for node in measured["nodes"]}.values())
    watts = no_watts | {
        scope: _mean([node["watts"].get(scope) for node in machines]) for scope in ("device", "package")
    }
    meters = combine_meters((node["host"], node["meters"]) for node in machines)
    if site.energy:
        nodes, window = (
            wattmeter.node_names([node["host"] for node in measured["nodes"]]),
            (measured["began_at"], measured["ended_at"]),
        )
        kind, (value,), reasons, _ = _read_wattmeters(site.energy, nodes, [window], "the time")
        watts[wattmeter.SCOPE] = None if value is None else value / (window[1] - window[0]) / len(nodes)
        meters.append(entry(kind, "; ".join(reasons) or None))
    hosts = [node["host"] for node in measured["nodes"]]
    return {
        "at": format_utc(measured["began_at"]),
        "hosts": hosts,
        "watts": watts,
        "meters": meters,
        "reason": None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values, None if one of them is missing."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None
