"""Make one timing, from launch to timing.json (`runs.other_measurements`): of one model, or of messages."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from common.files import utc, write_json
from common.options import run_program
from declared.site import Site, load_site
from declared.study import Study, load_study
from environments.record import BuiltEnvironment
from launchers import launch
from plan.design import plan_design
from plan.timings import (
    PARTS,
    PROGRAMS,
    Timing,
    code_digest,
    environment_digest,
    output,
    planned_timings,
    spec,
)
from plan.timings import key as key_of
from runs import other_measurements, transport
from runs.supervise import failure_or_lost, rank_input

KIND = "timing"
NO_TIMES: dict[str, Any] = {"parts": [], "layers": [], "updates": [], "empty_update": [], "messages": []}


def measure(study: Study, site: Site, timing: Timing, results: Path) -> dict[str, Any]:
    """Make the timing, write its timing.json below `results` (results/<study>) and return the content."""
    attempt = partial(attempt_timing, study, site, timing)
    return other_measurements.reuse_or_measure(
        KIND, timing, spec(site, timing), output(results, site, timing), study, site, results, attempt
    )


def read(file: Path) -> dict[str, Any]:
    """Return a checked timing.json.

    Raises:
        InputError: If it is broken.
    """
    return other_measurements.read_measurement(file, KIND)


def attempt_timing(
    study: Study,
    site: Site,
    timing: Timing,
    environment: BuiltEnvironment,
    launcher: launch.Launcher,
    folder: Path,
) -> dict[str, Any]:
    """Time once in the attempt's `folder`, and return the record."""
    settings = spec(site, timing)
    model = timing.run.graph.to_json() if timing.kind == PARTS else {}
    write_json(
        folder / "spec.json",
        rank_input(settings, timing.run.framework, environment, model, Path(), launcher.hosts),
    )
    launched_at = time.time()
    program = f"ranks.{PROGRAMS[timing.kind]}"
    outcome = launch.run(launcher, environment, folder.resolve(), settings, site, program=program)
    result = other_measurements.read_result(folder)
    status, reason = other_measurements.judge(outcome, result, site, launcher.hosts)
    if status == "failed":
        reason = failure_or_lost(reason, folder / "log.txt") if reason else None
    measured = result or {}
    return {
        "study": study.name,
        "site": site.name,
        "name": timing.name,
        "kind": timing.kind,
        "framework": timing.framework,
        "key": folder.parent.name,
        "status": status,
        "reason": reason,
        "job": launcher.job,
        "started_at": utc(launched_at),
        "ended_at": utc(time.time()),
        "wall_s": outcome.wall_s,
        "environment_digest": environment_digest(site, timing),
        "code_digest": code_digest(timing.framework, timing.kind),
        "placement": site.placement,
        "hosts": list(dict.fromkeys(rank["host"] for rank in measured.get("ranks", []))),
        "devices": [rank["device"] for rank in measured.get("ranks", [])],
        "transport": (
            transport.describe_transport(measured["transport"], settings, folder)
            if "transport" in measured else None
        ),
        **{
            name: measured.get(name)
            for name in ("node_memory_bytes", "resident_bytes", "other_cpu_share", "library_version")
        },
        **{name: measured.get(name, default) for name, default in NO_TIMES.items()},
    }  # fmt: skip


def find(study: Study, site: Site, name: str) -> Timing:
    """Return the timing of this name.

    Raises:
        InputError: If the study has none.
    """
    return other_measurements.find_by_name(KIND, planned_timings(plan_design(study, site), site), name, study)


def main(*, study: str, site: str, timing: str, key: str, out: Path) -> None:
    """Time the parts of a model's layers, or messages, and write timing.json.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        timing: a timing of the study, such as pytorch-strategy.messages
        key: the key that the caller expects the timing to have
        out: timing.json, in the folder of the key
    """
    declared, declared_site = load_study(study), load_site(site)
    declared_timing = find(declared, declared_site, timing)
    do = partial(measure, declared, declared_site, declared_timing)
    other_measurements.publish_measurement(
        f"{KIND} {declared_timing.name}", key_of(declared_site, declared_timing), key, out, declared_site, do
    )


if __name__ == "__main__":
    sys.exit(run_program(main))
