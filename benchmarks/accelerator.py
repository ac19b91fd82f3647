"""Check a node with an accelerator before campaigns: `make accelerator-test SITE=NAME`, at most 8 minutes.

It trains with the real worker, in the site's installed PyTorch or the locked one, and writes a page of
checks. At a site without accelerators, it trains smaller models on the CPU, which tests everything except the
device.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import accelerator_page as pages
from accelerator_page import Row
from common.errors import InputError, exit_status
from common.files import CHECKOUT, display_path, write_json, write_text
from common.program_sources import SCRIPTS
from common.run_status import RunStatus
from common.shell import capture, shell_command
from datasets.prepare import prepare
from declared.configuration import load_config, read_config
from declared.environments import read
from declared.frameworks import load_framework
from declared.site import Site, load_site
from document import machine
from environments import installed
from environments.build import build
from epoch_times import Process, interval_of_median, run_all
from launchers import launch
from launchers.local import rank_cores
from launchers.rank_command import WORKER
from launchers.variables import local_variables, rank_variables
from models.named import graph
from plan.site_limits import unsupported_reason
from ranks.worker.devices import visible_names
from runs.epochs import read_epochs
from runs.machine_lock import machine_lock
from runs.rank_input import rank_input
from runs.rank_summary import summarize_ranks
from runs.verdict import Measurements, Verdict, append_last_error, check_measurements
from support.one_run import one_run

BENCH = Path(__file__).resolve().parent
ENVIRONMENT = "pytorch"
LIMIT_S, LEAST_LIMIT_S = 240.0, 30.0  # of one training
WARM_UP, TIMED = 1, 3  # epochs of the throughput
SMALL = {
    "model": "small-cnn",
    "dataset": "digits",
    "batch_size": 32,
    "epochs": 3,
    "warmup_epochs": 1,
    "learning_rate": 0.01,
}
SMI = "nvidia-smi"
SAMPLED_EVERY_MS = 100


@dataclass(frozen=True)
class Sizes:
    """Sizes of the throughput measurement: a ResNet on images of side x side pixels, `steps` per epoch."""

    model: str
    side: int
    classes: int
    batch: int
    steps: int

    @property
    def dataset(self) -> str:
        """Name of the data set of random images with `steps` batches."""
        return f"synthetic-{self.side}x{self.side}x3-{self.classes}-{self.batch * self.steps}"


SIZES = {"cuda": Sizes("resnet-50", 224, 1000, 128, 30), "cpu": Sizes("resnet-18", 32, 10, 4, 3)}


@dataclass(frozen=True)
class Trained:
    """One training: folder, measurements, epochs, and the reason `why` it is not ok, if any."""

    folder: Path
    why: str | None
    measured: dict[str, Any] = field(default_factory=dict)
    epochs: Sequence[Mapping[str, Any]] = ()
    parameters: int = 0

    @property
    def timed(self) -> list[Mapping[str, Any]]:
        """The epochs that are not warm-up."""
        return [row for row in self.epochs if not row["warm_up"]]


class Rig:
    """Trains at a site, with all ranks on this machine, in folders below `folder`.

    Trainings end at `deadline` (monotonic, in s).
    """

    def __init__(self, site: Site, environment: Mapping[str, Any], folder: Path, deadline: float) -> None:
        self.site, self.environment, self.folder, self.deadline = site, environment, folder, deadline
        self.setup = (*site.setup, *environment.get("setup", ()))
        self.shares: list[tuple[float, float]] = []  # of CPU time: other processes, steal

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return self.deadline - time.monotonic()

    def train(
        self, name: str, framework: str, program: str = WORKER, nodes: int = 1, **levels: Any
    ) -> Trained:
        """Train with the worker, or with a program of this folder that calls it; judge it as a campaign does.

        CPU time of other processes and CPU steal are not judged here: they have rows of their own.
        """
        report_progress(f"{name}: {framework}, {levels.get('precision', 'fp32')}")
        limit_s = max(LEAST_LIMIT_S, min(LIMIT_S, self.left_s))
        site = replace(
            self.site, nodes=nodes, time_limit_s=limit_s, max_other_cpu_share=1.0, max_steal_share=1.0
        )
        run, spec = one_run(site, framework=framework, nodes=nodes, sync_every=1, **levels)
        data, folder = self.folder / "data" / run.levels["dataset"], self.folder / name
        prepare(run.levels["dataset"], data)
        folder.mkdir()
        described = load_framework(framework)
        environment, setup = self.environment, self.environment.get("setup", ())
        if program != WORKER and environment.get("installed"):
            setup = [*setup, f"export PYTHONPATH={shlex.quote(str(BENCH))}${{PYTHONPATH:+:$PYTHONPATH}}"]
        variables = {**environment["variables"], "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "compiled")}
        if program != WORKER and not environment.get("installed"):
            variables["PYTHONPATH"] = f"{SCRIPTS}{os.pathsep}{BENCH}"
        ranks = launch.make_launcher(site, spec, setup=setup)
        write_json(
            folder / "rank_input.json",
            rank_input(spec, described, environment, run.graph.to_json(), data, ranks.hosts),
        )
        launched_at = time.time()
        outcome = launch.run_ranks(
            ranks, {**environment, "variables": variables}, folder, spec, site, program, [data]
        )
        epochs = read_epochs(folder / "epochs.csv") if (folder / "epochs.csv").exists() else []
        measured = summarize_ranks(folder, launched_at, outcome.wall_s, spec, epochs)
        verdict = Verdict(outcome.status, outcome.reason)
        if outcome.status == RunStatus.OK:
            verdict = check_measurements(
                Measurements(measured, epochs), spec, site, ranks.hosts, run.graph.gradient_bytes
            )
        status, reason = verdict
        if measured is None or status in (RunStatus.FAILED, RunStatus.TIMEOUT):
            return Trained(folder, append_last_error(f"{status}: {reason}", folder / "log.txt"))
        self.shares.append((measured["other_cpu_share"], measured["steal_share"]))
        why = None if status == RunStatus.OK else f"{status}: {reason}"
        return Trained(folder, why, measured, epochs, run.graph.parameters)

    def call(self, name: str, script: Path, *arguments: object) -> dict[str, Any]:
        """Run a script as a rank, with its Python, cores and threads; return the JSON of its last line."""
        folder = self.folder / name
        folder.mkdir()
        site = replace(self.site, nodes=1)
        _, spec = one_run(site, framework="pytorch-single", nodes=1, sync_every=1, **SMALL)
        variables = {key: value for key, value in rank_variables(site, spec).items() if key != "PYTHONPATH"}
        variables |= {
            **self.environment["variables"],
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "compiled"),
        }
        cores = ",".join(map(str, rank_cores(0, spec["cores"], [spec["cores_per_rank"]])))
        program = [
            "taskset",
            "-c",
            cores,
            self.environment["python"]["executable"],
            str(script),
            *map(str, arguments),
        ]
        limit_s = max(LEAST_LIMIT_S, min(LIMIT_S, self.left_s))
        command = shell_command(self.setup, variables, program)
        try:
            output = run_all([Process(command, {})], local_variables(), folder, limit_s)
        except InputError:
            raise InputError("cannot-measure", f"{script.name}: not finished after {limit_s:.0f} s") from None
        json_lines = [line for line in output.splitlines() if line.startswith("{")]
        if not json_lines:
            raise InputError(
                "cannot-measure", append_last_error(f"{script.name} failed", folder / "log-0.txt")
            )
        result: dict[str, Any] = json.loads(json_lines[-1])
        return result


def main(argv: list[str] | None = None) -> None:
    """Check on this machine that the site's accelerator trains correctly, and measure how fast.

    Write a page of checks. Exit status 1 if a check failed.
    """
    parser = argparse.ArgumentParser(prog="make accelerator-test", description=main.__doc__)
    parser.add_argument(
        "--site", help="name of a file in config/sites/ (default: that of config/config.yaml)"
    )
    parser.add_argument("--out", type=Path, help="the page (default: results/accelerator/SITE.md)")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="no new pair of trainings begins that would end later"
    )
    parser.add_argument(
        "--pairs", type=int, default=6, help="pairs of the worker and the plain script; 6 have an interval"
    )
    parser.add_argument(
        "--batch", type=int, help="images a step of the ResNet, where the default is too large for the device"
    )
    parser.add_argument(
        "--compiler", choices=("none", "torch-compile"), help="default: torch-compile on accelerators"
    )
    options = parser.parse_args(argv)
    if options.pairs < 1 or options.minutes <= 0 or (options.batch is not None and options.batch < 4):
        raise InputError(
            "cannot-measure", "--pairs 1 or more, --minutes more than 0 and --batch 4 or more are expected"
        )
    name = options.site or load_config(read_config(CHECKOUT / "config" / "config.yaml")).site
    site, environment = prepare_site(name)
    out = options.out or CHECKOUT / "results" / "accelerator" / f"{name}.md"
    if out.is_dir():
        raise InputError(
            "cannot-measure", f"--out: {out} is a folder; expected a file, such as {out / name}.md"
        )
    folder = out.resolve().with_suffix(".runs")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with machine_lock(
        f"process {os.getpid()}, which tests the accelerator",
        lambda locked_by: report_progress(f"waiting for {locked_by}"),
    ):
        started = time.monotonic()
        rig = Rig(site, environment, folder, started + 60 * options.minutes)
        seen = rig.call("probe", BENCH / "device_probe.py")
        if site.device == "cuda" and not seen["devices"]:
            raise InputError(
                "cannot-measure",
                f"{display_path(site.file)}: device: cuda, but the PyTorch of "
                f"{environment['python']['executable']} ({seen['torch']}) sees no accelerator here; run "
                f"this on a node that has one, or correct installed.{ENVIRONMENT}",
            )
        sizes = SIZES[site.device]
        sizes = replace(sizes, batch=options.batch or sizes.batch)
        compiler, why = compiler_of(options.compiler, site, seen)
        parts = {
            "Losses": losses_part(rig),
            "Input": input_part(rig, sizes),
            "Ranks": ranks_part(rig, seen),
            "Counters": counters_part(rig, sizes, seen),
            "Throughput": throughput_part(rig, sizes, compiler, why, options.pairs),
        }
        parts["Counters"][0].extend(load_rows(rig, site))
        wall_s = time.monotonic() - started
    facts = [
        pages.device(name, site.device, seen),
        f"Machine: {machine()}",
        (
            f"Software: {pages.software(seen)}, {environment['deployment']}: "
            f"`{environment['python']['executable']}`"
        ),
        (
            f"Made by `make accelerator-test SITE={name}` in {wall_s:.0f} s. Logs of all trainings: "
            f"`{display_path(folder)}`"
        ),
    ]
    rows = [row for part, _ in parts.values() for row in part]
    write_text(out.resolve(), pages.page(f"Accelerator test of {name}", facts, parts))
    print(f"{pages.summary(rows).replace('**', '')}\n{display_path(out.resolve())}")
    if any(row.verdict == pages.FAILED for row in rows):
        sys.exit(1)


def prepare_site(name: str) -> tuple[Site, dict[str, Any]]:
    """Return the site with all ranks on this machine, and its tested environment of PyTorch.

    Raises:
        InputError: If the site uses images, or its PyTorch cannot be built or does not work.
    """
    site = load_site(name)
    described = read(ENVIRONMENT, site.variant)
    if described.deployment(site.realization) == "apptainer":
        raise InputError(
            "cannot-measure",
            f"{display_path(site.file)}: deployment: apptainer: this test runs outside of images; name the "
            f"machine's own PyTorch by installed.{ENVIRONMENT}, or take a site with deployment: venv",
        )
    if installed.inspect_site(site, {ENVIRONMENT}):
        site = load_site(name)
    indexes = {"torch_index": site.torch_index or ""}
    environment = build(described, site.cache.resolve(), indexes, site.realization)
    n_cores = len(os.sched_getaffinity(0))
    return replace(
        site, launcher="local", placement="emulated", ranks_per_node=1, nodes=2,
        cores=min(site.cores, n_cores), cpu_share=None, interface="lo", fabric="ethernet",
    ), environment  # fmt: skip


def compiler_of(requested: str | None, site: Site, seen: Mapping[str, Any]) -> tuple[str, str]:
    """Return the level of the factor compiler, and the reason as a text for the page."""
    if requested:
        return requested, f"compiler: {requested}, as asked by --compiler"
    if site.device == "cpu":
        return (
            "none",
            "compiler: none, since on a processor to compile takes longer than all else (--compiler)",
        )
    if seen["cannot_compile"]:
        return "none", f"compiler: none, since {seen['cannot_compile']}"
    return "torch-compile", "compiler: torch-compile"


def losses_part(rig: Rig) -> tuple[list[Row], str]:
    """Compare losses on the accelerator in each precision with those on the processor in fp32."""
    reference = rig.train("losses-processor", "pytorch-single", device="cpu", **SMALL)
    rows = []
    for precision in pages.TOLERANCES:
        levels = {**SMALL, "precision": precision}
        if why := _reason_missing(rig.site, levels):
            rows.append(pages.absent(f"losses in {precision}", why))
            continue
        trained = rig.train(f"losses-{precision}", "pytorch-single", **levels)
        if why := reference.why or trained.why:
            rows.append(pages.failed(f"losses in {precision}", why))
        else:
            rows.append(pages.losses(precision, reference.epochs, trained.epochs))
    note = (
        " Here both are the processor: in fp32 they are the same program." if rig.site.device == "cpu" else ""
    )
    return rows, (
        f"small-cnn on digits, {SMALL['epochs']} epochs of batch {SMALL['batch_size']} from the same weights "
        "and in the same order, on the accelerator and, in fp32, on this machine's processor. Found is the "
        f"largest difference between their losses, training and validation, in any epoch.{note}"
    )


def _reason_missing(site: Site, levels: Mapping[str, Any]) -> str | None:
    """Return why the site does not support these levels, None if it does."""
    run, _ = one_run(replace(site, nodes=1), framework="pytorch-single", nodes=1, sync_every=1, **levels)
    return unsupported_reason(site, run.levels)


def input_part(rig: Rig, sizes: Sizes) -> tuple[list[Row], str]:
    """Compare the batches that the worker's input sends to the device with plain copies."""
    levels = {**throughput_levels(sizes, "none"), "epochs": 1, "warmup_epochs": 0}
    run = rig.train("input", "pytorch-single", "same_input", **levels)
    if run.why:
        return [pages.failed("batches on the device", run.why)], ""
    comparison = json.loads((run.folder / "input.json").read_text())
    way = (
        "are sent ahead from pinned memory, by a stream of their own"
        if comparison["ahead"]
        else "are read when they are wanted"
    )
    return [pages.same_batches(comparison["ours"], comparison["plain"])], (
        f"{len(comparison['plain'])} batches of {sizes.batch} drawn {sizes.side}x{sizes.side}x3 images. Here "
        f"they {way}, while the device is kept busy. Each is compared with what a plain copy gives, pixel by "
        "pixel, by one number in which every place counts."
    )


def ranks_part(rig: Rig, seen: Mapping[str, Any]) -> tuple[list[Row], str]:
    """Train with two ranks on one device by Gloo, one by the device's own library, two on two devices."""
    own, on_gpu = ("nccl", True) if rig.site.device == "cuda" else ("gloo", False)
    two = rig.train("ranks-two", "pytorch-ddp", "through_gloo", nodes=2, **SMALL)
    refused = two.why is not None and "not through NCCL" in two.why
    rows = [
        _ended(
            "2 ranks on one device, Gloo",
            two,
            "gloo",
            "gloo over tcp lo",
            right=refused if on_gpu else not two.why,
        )
    ]
    single = rig.train("ranks-one", "pytorch-ddp", **SMALL)
    rows.append(_ended(f"1 rank, {own}", single, own, "none", right=not single.why))
    if seen["devices"] > 1:
        spread = Rig(replace(rig.site, ranks_per_node=2), rig.environment, rig.folder, rig.deadline)
        on_two_devices = spread.train("ranks-two-devices", "pytorch-ddp", **SMALL)
        rows.append(
            _ended(
                "2 ranks on two devices, nccl",
                on_two_devices,
                "nccl",
                "nccl over links within the node",
                right=not on_two_devices.why,
            )
        )
    else:
        rows.append(pages.absent("2 ranks on two devices, nccl", "needs two accelerators"))
    rows += strategy_rows(rig, seen)
    judged = (
        " A campaign makes the first one `invalid`, and has to: the gradients of accelerators went not "
        "through NCCL. Only this test asks for that, since NCCL refuses two ranks on one device."
    )
    return (
        rows,
        "pytorch-ddp, small-cnn on digits. Found: the library that joined the ranks, and the transport in "
        "the record. Strategies: pytorch-strategy, whose layers are divided at random between two ranks; "
        "found is the largest difference of a loss from that of one rank's processor, in any epoch."
        + (judged if on_gpu else " Without an accelerator, PyTorch joins its ranks by Gloo."),
    )


def strategy_rows(rig: Rig, seen: Mapping[str, Any]) -> list[Row]:
    """Train by random strategies of two ranks: on one device by Gloo, on two by the device's own library."""
    levels = {**SMALL, "batch_scope": "global"}
    reference = rig.train("strategy-reference", "pytorch-single", device="cpu", **levels)
    levels["parallelism"] = "random1"
    on_one_device = rig.train("strategy-one-device", "pytorch-strategy", "through_gloo", nodes=2, **levels)
    tried = [("a strategy, 2 ranks on one device, Gloo", on_one_device)]
    if seen["devices"] > 1:
        spread = Rig(replace(rig.site, ranks_per_node=2), rig.environment, rig.folder, rig.deadline)
        tried.append(
            ("a strategy on two devices", spread.train("strategy-two-devices", "pytorch-strategy", **levels))
        )
    rows = []
    for check, trained in tried:
        refused = trained is on_one_device and "not through NCCL" in (trained.why or "")
        if why := reference.why or (None if refused else trained.why):
            rows.append(pages.failed(check, why))
        else:
            rows.append(pages.losses("fp32", reference.epochs, trained.epochs, check))
    if seen["devices"] < 2:
        rows.append(pages.absent("a strategy on two devices", "needs two accelerators"))
    return rows


def _ended(check: str, trained: Trained, library: str, transport: str, *, right: bool) -> Row:
    """Check that a training ended, with this library and with this transport in its record."""
    if not trained.measured:
        return pages.failed(check, trained.why or "")
    joined_by = json.loads((trained.folder / "result.json").read_text())["transport"]
    actual = joined_by, trained.measured["transport"]
    verdict = "" if right else f"; {trained.why or 'ok, although it has to be invalid'}"
    return pages.judged(
        check,
        f"{actual[0]}; {actual[1]}{verdict}",
        f"{library}; {transport}",
        right=right and actual == (library, transport),
    )


def counters_part(rig: Rig, sizes: Sizes, seen: Mapping[str, Any]) -> tuple[list[Row], str]:
    """Compare what a run recorded with other sources: clocks, memory sizes and power of nvidia-smi."""
    foreign = _smi(rig.site, "--query-compute-apps=pid")
    with power_of(rig) as power_file:
        run = rig.train("counters", "pytorch-single", "clocked", **throughput_levels(sizes, "none"))
    if run.why:
        return [pages.failed("a run with counters", run.why)], ""
    clocks = json.loads((run.folder / "clocks.json").read_text())[WARM_UP:]
    on_gpu = rig.site.device == "cuda"
    times = [row["epoch_time_s"] for row in run.timed]
    rows = [
        pages.clocks(
            times, [clock["device_s"] for clock in clocks], "CUDA events" if on_gpu else "a clock around it"
        ),
        pages.memory(
            run.measured["memory_peak_bytes"], run.parameters, run.measured["node_memory_bytes"], "rank"
        ),
    ]
    if on_gpu:
        peak = run.measured["device_memory_peak_bytes"]
        rows.append(pages.memory(peak, run.parameters, seen["memory_bytes"], "accelerator"))
        rows.append(
            pages.energy(
                [row["energy_device_j"] for row in run.timed], clocks, pages.powers(power_file.read_text())
            )
        )
    else:
        rows.append(pages.absent("memory peak of the accelerator", "there is none"))
        rows.append(pages.absent("energy against mean power × time", "there is no accelerator"))
    if foreign is None:
        rows.append(pages.absent("others on the accelerator", f"{SMI} does not tell"))
    else:
        n_foreign = len(foreign.split())
        rows.append(
            pages.judged(
                "others on the accelerator",
                f"{n_foreign} processes",
                "none before the test",
                right=not n_foreign,
            )
        )
    return rows, (
        f"{sizes.model} on {sizes.side}x{sizes.side} images, batch {sizes.batch}, amp, channels last, not "
        "compiled. The first row has the epoch with the largest difference. The last two rows are of all "
        "trainings of this page: where they fail, somebody else uses this machine, and a campaign's runs "
        "would be `invalid`, too."
    )


def load_rows(rig: Rig, site: Site) -> list[Row]:
    """Compare CPU time of other processes and CPU steal, over all trainings, with the site's limits."""
    if not rig.shares:
        return [pages.failed("CPU time of other processes", "no training came to its end")]
    other_shares, steal = zip(*rig.shares, strict=True)
    return [
        pages.share("CPU time of other processes", other_shares, site.max_other_cpu_share),
        pages.share("CPU steal", steal, site.max_steal_share),
    ]


@contextlib.contextmanager
def power_of(rig: Rig) -> Iterator[Path]:
    """Sample the accelerator's power into a file, and yield its path.

    The file stays empty if nvidia-smi does not know the power.
    """
    power_file = rig.folder / "power.csv"
    power_file.touch()
    fields = [
        name
        for name in ("power.draw.instant", "power.draw")
        if _smi(rig.site, f"--query-gpu={name}") is not None
    ]
    if not fields:
        yield power_file
        return
    command = [*_smi_command(rig.site, f"--query-gpu=timestamp,{fields[0]}"), "-lms", str(SAMPLED_EVERY_MS)]
    with open(power_file, "wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        try:
            yield power_file
        finally:
            child.terminate()
            child.wait()


def _smi_command(site: Site, query: str) -> list[str]:
    """Return the command that queries the accelerator of rank 0."""
    first = (visible_names({**os.environ, **dict(site.variables)}) or ["0"])[0]
    return [SMI, f"--id={first}", query, "--format=csv,noheader,nounits"]


def _smi(site: Site, query: str) -> str | None:
    """Return the answer of nvidia-smi; None without an accelerator or without an answer."""
    if site.device != "cuda":
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = capture(_smi_command(site, query), timeout=20)
        return done.stdout if done.returncode == 0 else None
    return None


def throughput_levels(sizes: Sizes, compiler: str) -> dict[str, Any]:
    """Return the levels of a run that measures images per second."""
    return {
        "model": sizes.model, "dataset": sizes.dataset, "batch_size": sizes.batch, "precision": "amp",
        "memory_format": "channels-last", "compiler": compiler, "learning_rate": 0.01,
        "epochs": WARM_UP + TIMED, "warmup_epochs": WARM_UP,
    }  # fmt: skip


def throughput_part(rig: Rig, sizes: Sizes, compiler: str, why: str, max_pairs: int) -> tuple[list[Row], str]:
    """Measure the worker and the plain script in alternating order."""
    pairs: list[tuple[float, float]] = []
    longest_s = 0.0
    while len(pairs) < max_pairs and (not pairs or longest_s < rig.left_s):
        began, number = time.monotonic(), len(pairs) + 1
        rates: dict[str, float] = {}
        for side in ("plain", "ours") if number % 2 else ("ours", "plain"):
            try:
                rates[side] = _rate(rig, f"{side}-{number}", sizes, compiler, by_worker=side == "ours")
            except InputError as error:
                return [
                    pages.failed(
                        f"images/s of {'Ringside' if side == 'ours' else 'the plain script'}", str(error)
                    )
                ], why
        pairs.append((rates["plain"], rates["ours"]))
        report_progress(
            f"[{number}/{max_pairs}] plain {rates['plain']:,.0f}, Ringside {rates['ours']:,.0f} images/s"
        )
        longest_s = max(longest_s, time.monotonic() - began) if number == 1 else time.monotonic() - began
    meaning = (
        f"{sizes.model} on drawn {sizes.side}x{sizes.side}x3 images, batch {sizes.batch}, bfloat16 autocast, "
        f"channels last, {why}. Each side is a process of its own, in turn, the other first in every second "
        f"pair; it gives the median of {TIMED} epochs of {sizes.steps} steps after {WARM_UP} that does not "
        "count. The plain script is `benchmarks/bare/resnet_training.py`: it draws its images once and "
        "copies them from pinned memory, while Ringside draws every batch anew. The interval of the ratio is "
        "between two of the ratios in their order, and needs 6 pairs. The ratio is told: it fails nothing."
    )
    return pages.throughput(pairs, interval_of_median([worker / plain for plain, worker in pairs])), meaning


def _rate(rig: Rig, name: str, sizes: Sizes, compiler: str, *, by_worker: bool) -> float:
    """Return images per second of a training; InputError if it fails or trains other samples or models."""
    images = sizes.batch * sizes.steps
    if by_worker:
        run = rig.train(name, "pytorch-single", **throughput_levels(sizes, compiler))
        if run.why:
            raise InputError("cannot-measure", run.why)
        done, parameters = {row["samples_trained"] for row in run.epochs}, run.parameters
        times = [row["epoch_time_s"] for row in run.timed]
    else:
        work = (sizes.model, sizes.side, sizes.classes, sizes.batch, sizes.steps, WARM_UP + TIMED, compiler)
        result = rig.call(name, BENCH / "bare" / "resnet_training.py", rig.site.device, *work)
        done, parameters, times = {result["samples"]}, result["parameters"], result["epoch_times_s"][WARM_UP:]
    if done != {images}:
        raise InputError("cannot-measure", f"{name}: trained {done} samples an epoch, expected {images}")
    expected = graph(sizes.model, (sizes.side, sizes.side, 3), sizes.classes).parameters
    if parameters != expected:
        raise InputError("cannot-measure", f"{name}: has {parameters} parameters, expected {expected}")
    return images / statistics.median(times)


def report_progress(text: str) -> None:
    """Print a line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(main))
