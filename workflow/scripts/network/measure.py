"""Run one collective benchmark and write its collective_benchmark.json, as `python -m network.measure`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.files import write_json
from common.notes import Note
from common.options import run_program
from common.run_status import RunStatus
from declared.site import Site
from environments.record import BuiltEnvironment
from launchers import launch
from launchers.protocol import Launcher, Outcome
from models.collectives import COLLECTIVES
from plan.collective_benchmarks import CollectiveBenchmark, planned_benchmarks
from runs import other_measurements, transport
from runs.rank_input import rank_input
from runs.reasons import NETWORK_PREFIX
from runs.verdict import Verdict

PROGRAM = "ranks.collective_benchmark"


def measure_benchmark(
    site: Site,
    benchmark: CollectiveBenchmark,
    environment: BuiltEnvironment,
    launcher: Launcher,
    attempt_folder: Path,
) -> dict[str, Any]:
    """Run a benchmark once in the attempt's folder, and return the fields of its record."""
    benchmark_spec = benchmark.spec(site)
    rank_spec = rank_input(
        benchmark_spec, benchmark.run.framework, environment, model={}, data=Path(), hosts=launcher.hosts
    )
    write_json(attempt_folder / "rank_input.json", rank_spec)
    outcome = launch.run_ranks(
        launcher, environment, attempt_folder.resolve(), benchmark_spec, site, program=PROGRAM
    )
    result = other_measurements.read_result(attempt_folder)
    described = (
        transport.describe_transport(result["transport"], benchmark_spec, attempt_folder) if result else None
    )
    status, reason = judge_benchmark(
        outcome, result, described, benchmark_spec, site, launcher.hosts, attempt_folder / "log.txt"
    )
    return {
        "collective": benchmark.collective,
        "nodes": benchmark.nodes,
        "ranks": benchmark.geometry.ranks,
        "status": status,
        "reason": reason,
        "wall_s": outcome.wall_s,
        **benchmark.digests(site),
        "interface": site.interface,
        "bandwidth_bytes_s": benchmark_spec["bandwidth_bytes_s"],
        "transport": described,
        "hosts": list(dict.fromkeys(rank["host"] for rank in result["ranks"])) if result else [],
        "devices": [rank["device"] for rank in result["ranks"]] if result else [],
        "sent_bytes": _most_sent(result) if result else None,
        "other_cpu_share": result["other_cpu_share"] if result else None,
        "library_version": result["library_version"] if result else None,
        "sizes": result["sizes"] if result else [],
    }


def judge_benchmark(
    outcome: Outcome,
    result: Mapping[str, Any] | None,
    described: str | None,
    benchmark_spec: Mapping[str, Any],
    site: Site,
    hosts: Sequence[str],
    log: Path,
) -> Verdict:
    """Judge a benchmark as `other_measurements.judge_measurement` does, or as INVALID.

    It is also INVALID if messages did not use the site's network. `described` is the transport in words, and
    `hosts` are the nodes on which the ranks were started.
    """
    verdict = other_measurements.judge_measurement(outcome, result, site, hosts, log)
    if verdict.status != RunStatus.OK or result is None or described is None:
        return verdict
    # The transport is judged as in a run with one epoch that carries all messages of the benchmark.
    row = {"epoch": 1, "n_allreduces": 1, "sent_bytes": _most_sent(result)}
    leaving_ratio = COLLECTIVES[benchmark_spec["collective"]].leaves(
        benchmark_spec["nodes"], benchmark_spec["ranks_per_node"]
    )
    if objection := transport.wrong_network_reason(
        described, benchmark_spec, site, [row], leaving_ratio * result["message_bytes"], benchmark=True
    ):
        reason = Note(objection.code, f"{NETWORK_PREFIX}{objection}", **objection.facts)
        return Verdict(RunStatus.INVALID, reason)
    return verdict


def _most_sent(result: Mapping[str, Any]) -> int | None:
    """Return the bytes sent by the busiest rank; None if a rank did not count them."""
    sent = [rank["sent_bytes"] for rank in result["ranks"]]
    return None if None in sent else max(sent)


KIND = other_measurements.MeasurementKind("collective_benchmark", planned_benchmarks, measure_benchmark)


def main(*, study: str, site: str, benchmark: str, key: str, out: Path) -> None:
    """Run a collective benchmark of one framework on some nodes, and write its record.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        benchmark: a collective benchmark of the study, such as pytorch-ddp.n2
        key: the key that the caller expects the benchmark to have
        out: collective_benchmark.json, in the folder of the key
    """
    KIND.execute_planned(study, site, benchmark, key, out)


if __name__ == "__main__":
    sys.exit(run_program(main))
