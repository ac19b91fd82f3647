"""Compare epoch times of the worker with a bare hand-written loop (bare/<framework>.py).

Both train the same samples and model on the same cores, in pairs with alternating order. Each process gives
the median of its epochs without the first ones, and a pair gives their ratio.
"""

import contextlib
import csv
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import quantile_test

from common.errors import InputError
from common.files import write_json
from common.program_sources import SCRIPTS
from datasets.prepare import prepare
from declared.environments import VENV, Realization, read
from declared.frameworks import load_framework
from declared.site import Site, load_site
from document import section, table
from environments.build import build
from launchers import launch
from launchers.local import rank_cores
from launchers.rank_command import WORKER
from plan.design import Run
from ranks.worker.group import free_port
from ranks.worker.load import own_cpu_s
from ranks.worker.node import busy_seconds
from runs.machine_lock import machine_lock
from runs.rank_input import rank_input
from support.one_run import one_run

AIM = 1.02
BATCH_SIZE = 32
WARM_UP = 2
TIME_LIMIT_S = 180
ACCURACY_TOLERANCE = 0.05
BARE = Path(__file__).resolve().parent / "bare"
LOOPBACK = "127.0.0.1"
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True)
class Training:
    """One training: median epoch time, work, CPU share of other processes, seconds to the first epoch."""

    epoch_time_s: float
    samples: int
    parameters: int
    accuracy: float
    other_cpu_share: float = 0.0
    startup_s: float | None = None


@dataclass(frozen=True)
class Process:
    """A command and its environment variables besides PATH and HOME."""

    command: list[str]
    variables: dict[str, str]


def alone(program: list[str], ranks: int, cores: list[int]) -> list[Process]:
    """Return the process of one rank."""
    return [Process(["taskset", "-c", str(cores[0]), *program], {})]


def with_master(program: list[str], ranks: int, cores: list[int]) -> list[Process]:
    """Return ranks with the variables that torchrun sets."""
    meeting = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port(LOOPBACK)), "GLOO_SOCKET_IFNAME": "lo"}
    return [
        Process(
            ["taskset", "-c", str(cores[rank]), *program],
            {**meeting, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
        )
        for rank in range(ranks)
    ]


def with_tf_config(program: list[str], ranks: int, cores: list[int]) -> list[Process]:
    """Return workers with their TF_CONFIG."""
    workers: list[str] = []
    while len(set(workers)) < ranks:
        workers = [f"{LOOPBACK}:{free_port(LOOPBACK)}" for _ in range(ranks)]
    configs = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}} for rank in range(ranks)
    ]
    return [
        Process(["taskset", "-c", str(cores[rank]), *program], {"TF_CONFIG": json.dumps(config)})
        for rank, config in enumerate(configs)
    ]


def with_horovodrun(program: list[str], ranks: int, cores: list[int]) -> list[Process]:
    """Return the process of Horovod's launcher, which starts the ranks."""
    pinned = (
        f"cores=({' '.join(map(str, cores))}); exec taskset -c ${{cores[$HOROVOD_LOCAL_RANK]}} "
        f"{shlex.join(program)}"
    )
    horovodrun = str(Path(program[0]).with_name("horovodrun"))
    return [
        Process(
            [horovodrun, "-np", str(ranks), "--gloo", "--network-interfaces", "lo", "bash", "-c", pinned], {}
        )
    ]


STARTS: dict[str, Callable[[list[str], int, list[int]], list[Process]]] = {
    "pytorch-single": alone,
    "pytorch-ddp": with_master,
    "horovod-pytorch": with_horovodrun,
    "tensorflow-single": alone,
    "tensorflow-multiworker": with_tf_config,
    "horovod-tensorflow": with_horovodrun,
}


class Bench:
    """Trains with the worker or a bare loop, `epochs` epochs per process, on one core per rank.

    Trainings have folders below `folder`.
    """

    def __init__(self, folder: Path, epochs: int, realization: Realization = VENV) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.epochs, self.realization = folder, epochs, realization
        self.site: Site = replace(
            load_site("local"), cores=2, nodes=2, ranks_per_node=1, time_limit_s=TIME_LIMIT_S
        )
        self.cores = [core for rank in range(2) for core in rank_cores(rank, 2, [1])]
        if len(self.cores) < 2:
            raise InputError("cannot-measure", "the epochs of two ranks need two cores; this machine has one")
        self.data = folder / "digits"
        prepare("digits", self.data)
        self._n_attempts = 0

    def environment(self, framework: str) -> dict[str, Any]:
        """Return the framework's environment.json; build the environment in the site's cache if missing."""
        described = read(load_framework(framework).environment)
        return build(
            described, self.site.cache, {"torch_index": self.site.torch_index or ""}, self.realization
        )

    def train_worker(self, framework: str) -> Training:
        """Train with the worker, as the workflow does."""
        launched_at = time.time()
        folder, parameters = self.trained(framework)
        rows = list(csv.DictReader((folder / "epochs.csv").open()))
        return Training(
            statistics.median(float(row["epoch_time_s"]) for row in rows if row["warm_up"] == "false"),
            int(rows[-1]["samples_trained"]),
            parameters,
            float(rows[-1]["train_accuracy"]),
            startup_s=json.loads((folder / "result.json").read_text())["ready_at"] - launched_at,
        )

    def trained(self, framework: str, program: str = WORKER, **other_levels: Any) -> tuple[Path, int]:
        """Train with the worker or with a program of this folder.

        Args:
            framework: Its name.
            program: The module that ranks run.
            other_levels: Levels of further factors.

        Returns:
            The attempt's folder and the number of the model's parameters.
        """
        levels = {
            "framework": framework, "model": "small-cnn", "dataset": "digits", "nodes": ranks_of(framework),
            "batch_size": BATCH_SIZE, "sync_every": 1, "epochs": self.epochs, "warmup_epochs": WARM_UP,
            **other_levels,
        }  # fmt: skip
        folder = self._attempt()
        run = train_ranks(self.site, self.environment(framework), folder, self.data, program, levels)
        return folder, run.graph.parameters

    def train_bare(self, framework: str) -> Training:
        """Train with the bare loop; the slowest rank of an epoch counts, as in the worker."""
        environment, ranks, folder = self.environment(framework), ranks_of(framework), self._attempt()
        program = [environment["python"]["executable"], str(BARE / f"{framework}.py")]
        program += [str(self.data), str(BATCH_SIZE), str(self.epochs)]
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        variables = {
            **{name: value for name, value in os.environ.items() if name in PASSED_VARIABLES},
            **one_thread, "TF_CPP_MIN_LOG_LEVEL": "1", **environment["variables"],
        }  # fmt: skip
        output = run_all(STARTS[framework](program, ranks, self.cores), variables, folder)
        results = [json.loads(line[line.index("{") :]) for line in output.splitlines() if '{"rank": ' in line]
        if len(results) != ranks:
            problem = f"bare/{framework}.py: {len(results)} of {ranks} ranks came to an end: {_tail(output)}"
            raise InputError("cannot-measure", problem)
        epochs = zip(*(rank["epoch_times_s"] for rank in results), strict=True)
        return Training(
            statistics.median([max(times) for times in epochs][WARM_UP:]),
            sum(rank["samples"] for rank in results),
            results[0]["parameters"],
            sum(rank["train_accuracy"] for rank in results) / ranks,
        )

    def _attempt(self) -> Path:
        self._n_attempts += 1
        folder = self.folder / f"training-{self._n_attempts}"
        folder.mkdir()
        return folder


def train_ranks(
    site: Site, environment: dict[str, Any], folder: Path, data: Path, program: str, levels: dict[str, Any]
) -> Run:
    """Train with a module that ranks run, the worker's or one of this folder, and return the run.

    Raises:
        InputError: If the training fails.
    """
    run, spec = one_run(site, **levels)
    ranks = launch.make_launcher(site, spec)
    if program != WORKER:
        path = f"{SCRIPTS}{os.pathsep}{Path(__file__).resolve().parent}"
        environment = {**environment, "variables": {**environment["variables"], "PYTHONPATH": path}}
    content = rank_input(spec, run.framework, environment, run.graph.to_json(), data, ranks.hosts)
    write_json(folder / "rank_input.json", content)
    outcome = launch.run_ranks(ranks, environment, folder, spec, site, program=program, reads=[data])
    if outcome.status != "ok":
        log = _tail((folder / "log.txt").read_text(errors="replace"))
        raise InputError("cannot-measure", f"{run.framework.name}: {outcome.reason}: {log}")
    return run


def ranks_of(framework: str) -> int:
    """Return 2 for a distributed framework, else 1."""
    return 2 if load_framework(framework).distributed else 1


def run_all(
    processes: Sequence[Process], variables: dict[str, str], folder: Path, limit_s: float = TIME_LIMIT_S
) -> str:
    """Run processes in parallel for at most `limit_s`, with a log each in `folder`, and return all logs."""
    logs = [folder / f"log-{number}.txt" for number in range(len(processes))]
    started: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + limit_s
    try:
        for process, log in zip(processes, logs, strict=True):
            with open(log, "wb") as output:
                started.append(
                    subprocess.Popen(
                        process.command, env={**variables, **process.variables}, stdin=subprocess.DEVNULL,
                        stdout=output, stderr=output, start_new_session=True,
                    )
                )  # fmt: skip
        for child in started:
            child.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise InputError(
            "cannot-measure", f"{shlex.join(processes[0].command)}: not finished after {limit_s:g} s"
        ) from None
    finally:
        _end(started)
    return "".join(log.read_text(errors="replace") for log in logs)


def alone_here(framework: str) -> contextlib.AbstractContextManager[None]:
    """Lock this machine against runs of the workflow while a framework is measured."""
    return machine_lock(
        f"process {os.getpid()} measures {framework}",
        lambda locked_by: _report_progress(f"waiting for {locked_by}"),
    )


def watched(train: Callable[[str], Training], framework: str) -> Training:
    """Train with this machine locked, and measure the share of CPU time of other processes."""
    with alone_here(framework):
        began, own, busy = time.monotonic(), own_cpu_s(), busy_seconds()
        training = train(framework)
        other_cpu_s = max(0.0, busy_seconds() - busy - (own_cpu_s() - own))
        return replace(
            training, other_cpu_share=other_cpu_s / (time.monotonic() - began) / (os.cpu_count() or 1)
        )


def check_same_work(framework: str, bare: Training, worker: Training) -> None:
    """Raise InputError if the two trained other samples or models, or reached other accuracies."""
    is_same_size = (bare.samples, bare.parameters) == (worker.samples, worker.parameters)
    if not is_same_size or abs(bare.accuracy - worker.accuracy) > ACCURACY_TOLERANCE:
        problem = f"{framework}: the bare loop and ours do not train the same thing: {bare}, {worker}"
        raise InputError("cannot-measure", problem)


def measure(frameworks: Sequence[str], pairs: int, epochs: int) -> dict[str, list[tuple[Training, Training]]]:
    """Return pairs (bare, worker) of every framework, measured in turns."""
    trainings: dict[str, list[tuple[Training, Training]]] = {framework: [] for framework in frameworks}
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        bench = Bench(Path(folder), epochs)
        for framework in frameworks:
            bench.environment(framework)
        for number in range(pairs):
            for framework in frameworks:
                if number % 2:
                    worker, bare = (
                        watched(bench.train_worker, framework),
                        watched(bench.train_bare, framework),
                    )
                else:
                    bare, worker = (
                        watched(bench.train_bare, framework),
                        watched(bench.train_worker, framework),
                    )
                check_same_work(framework, bare, worker)
                trainings[framework].append((bare, worker))
                text = f"bare {bare.epoch_time_s:.4f} s, ours {worker.epoch_time_s:.4f} s an epoch"
                _report_progress(
                    f"[{number + 1}/{pairs}] {framework}: {text}, ratio "
                    f"{worker.epoch_time_s / bare.epoch_time_s:.3f}"
                )
    return trainings


def interval_of_median(values: Sequence[float]) -> str:
    """Return the 95 % interval of a median between two order statistics, which assumes no distribution."""
    interval = quantile_test(values, p=0.5).confidence_interval(0.95)
    if not math.isfinite(interval.low + interval.high):
        return "more pairs needed"
    return f"{interval.low:.3f} to {interval.high:.3f}"


def report(trainings: dict[str, list[tuple[Training, Training]]], command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for framework, pairs in trainings.items():
        bare_s, worker_s = (
            statistics.median(side.epoch_time_s for side in sides) for sides in zip(*pairs, strict=True)
        )
        ratios = [worker.epoch_time_s / bare.epoch_time_s for bare, worker in pairs]
        ratio = statistics.median(ratios)
        rows.append([
            framework, str(ranks_of(framework)), str(len(pairs)), f"{bare_s:.4f} s", f"{worker_s:.4f} s",
            f"{ratio:.3f}", interval_of_median(ratios), f"{AIM}: {'met' if ratio <= AIM else 'missed'}",
        ])  # fmt: skip
    other_share = max(side.other_cpu_share for pairs in trainings.values() for pair in pairs for side in pair)
    return section(
        "Epoch time compared with bare loops",
        command,
        table(
            ["framework", "ranks", "pairs", "bare loop", "Ringside", "ratio", "95 % interval", "aim"], rows
        ),
        f"small-cnn on digits, batch {BATCH_SIZE} and one core per rank. The bare loops are in "
        "`benchmarks/bare/`. Both run in turn, in alternating order. A process gives the median of its "
        f"epochs without the first {WARM_UP}, a pair the ratio; the table has medians. The interval lies "
        "between two order statistics of the ratios, which assumes no distribution. Other processes used "
        f"at most {other_share:.1%} of CPU time.",
    )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End running processes, first by SIGTERM: horovodrun has ranks in sessions of their own."""
    for signum, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        left = [process for process in processes if process.poll() is None]
        for process in left:
            os.killpg(process.pid, signum)
        for process in left:
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue


def _tail(log: str) -> str:
    return " | ".join(log.splitlines()[-3:])[-400:]


def _report_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
