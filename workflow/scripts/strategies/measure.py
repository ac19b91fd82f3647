"""Make one timing, from launch to timing.json (`runs.other_measurements`): of one model, or of messages."""

import sys
from pathlib import Path
from typing import Any

from common.files import write_json
from common.options import run_program
from declared.site import Site
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import Launcher
from plan.timings import PARTS, PROGRAMS, Timing, planned_timings
from runs import other_measurements, transport
from runs.rank_input import rank_input

NO_TIMES: dict[str, Any] = {"parts": [], "layers": [], "updates": [], "empty_update": [], "messages": []}


def measure_timing(
    site: Site, timing: Timing, environment: BuiltEnvironment, launcher: Launcher, attempt_folder: Path
) -> dict[str, Any]:
    """Time once in the attempt's folder, and return what only the record of a timing has."""
    settings = timing.spec(site)
    model = timing.run.graph.to_json() if timing.kind == PARTS else {}
    write_json(
        attempt_folder / "rank_input.json",
        rank_input(settings, timing.run.framework, environment, model, Path(), launcher.hosts),
    )
    program = f"ranks.{PROGRAMS[timing.kind]}"
    outcome = launch.run_ranks(
        launcher, environment, attempt_folder.resolve(), settings, site, program=program
    )
    result = other_measurements.read_result(attempt_folder)
    log = attempt_folder / "log.txt"
    status, reason = other_measurements.judge_measurement(outcome, result, site, launcher.hosts, log)
    measured = result or {}
    return {
        "name": timing.name,
        "kind": timing.kind,
        "status": status,
        "reason": reason,
        "wall_s": outcome.wall_s,
        **timing.digests(site),
        "hosts": list(dict.fromkeys(rank["host"] for rank in measured.get("ranks", []))),
        "devices": [rank["device"] for rank in measured.get("ranks", [])],
        "transport": (
            transport.describe_transport(measured["transport"], settings, attempt_folder)
            if "transport" in measured else None
        ),
        **{
            name: measured.get(name)
            for name in ("node_memory_bytes", "resident_bytes", "other_cpu_share", "library_version")
        },
        **{name: measured.get(name, default) for name, default in NO_TIMES.items()},
    }  # fmt: skip


KIND = other_measurements.MeasurementKind("timing", planned_timings, measure_timing)


def main(*, study: str, site: str, timing: str, key: str, out: Path) -> None:
    """Time the parts of a model's layers, or messages, and write timing.json.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        timing: a timing of the study, such as pytorch-strategy.messages
        key: the key that the caller expects the timing to have
        out: timing.json, in the folder of the key
    """
    KIND.execute_planned(study, site, timing, key, out)


if __name__ == "__main__":
    sys.exit(run_program(main))
