"""Measure what the workflow itself costs: `make bench-overhead ARGS='epochs --pairs 9 --write'`."""

import argparse
import sys
from pathlib import Path

import adjusted_coverage
import analysis_cost
import dry_runs
import epoch_times
import images
import inputs
import interval_coverage
import models_by_hand
import stopping_coverage
import study_cost
import suite_cost
import tracing_cost
import ways
from common.errors import InputError, exit_status
from declared.environments import BASE
from document import write_part


def dry_run_part(options: argparse.Namespace) -> str:
    """Measure dry-runs."""
    command = f"dry-run --runs {' '.join(map(str, options.runs))} --repetitions {options.repetitions}"
    return dry_runs.report(dry_runs.measure(options.runs, options.repetitions), _call(command))


def epochs_part(options: argparse.Namespace) -> str:
    """Measure epochs."""
    chosen_frameworks = (
        f" --frameworks {' '.join(options.frameworks)}"
        if options.frameworks != list(epoch_times.STARTS)
        else ""
    )
    command = f"epochs --pairs {options.pairs} --epochs {options.epochs}{chosen_frameworks}"
    return epoch_times.report(
        epoch_times.measure(options.frameworks, options.pairs, options.epochs), _call(command)
    )


def study_part(options: argparse.Namespace) -> str:
    """Compare the wall time of a finished campaign with the sum of its runs."""
    return study_cost.report(
        *study_cost.measure(options.results), _call(f"study --results {options.results}")
    )


def ways_part(options: argparse.Namespace) -> str:
    """Run a few cells both ways on the virtual cluster."""
    return ways.report(ways.measure(options.epochs), _call(f"ways --epochs {options.epochs}"))


def images_part(options: argparse.Namespace) -> str:
    """Train in images and in virtual environments."""
    chosen_frameworks = (
        f" --frameworks {' '.join(options.frameworks)}"
        if options.frameworks != list(epoch_times.STARTS)
        else ""
    )
    command = (
        f"images --base {options.base} --pairs {options.pairs} --epochs {options.epochs}{chosen_frameworks}"
    )
    measurements = images.measure(options.frameworks, options.pairs, options.epochs, options.base)
    return images.report(*measurements, _call(command))


def input_part(_: argparse.Namespace) -> str:
    """Measure input alone, and training."""
    return inputs.report(inputs.measure(), "make bench-input")


def models_part(options: argparse.Namespace) -> str:
    """Train models built from the graph, and models written by hand."""
    return models_by_hand.report(
        models_by_hand.measure(options.pairs), f"make bench-models ARGS='--pairs {options.pairs}'"
    )


def analysis_part(options: argparse.Namespace) -> str:
    """Analyse the records of a large campaign."""
    runs, epochs = options.runs[-1], options.epochs
    n_runs, costs = analysis_cost.measure(runs, epochs)
    return analysis_cost.report(
        n_runs, epochs, costs, f"make bench-analysis ARGS='--runs {runs} --epochs {epochs}'"
    )


def tests_part(options: argparse.Namespace) -> str:
    """Run the project's tests, and report where their time goes."""
    cost = suite_cost.measure(["make", options.target, "ARGS=--durations=60"])
    if cost.status:
        raise InputError(
            "cannot-measure",
            (
                f"make {options.target} failed after {cost.wall_s / 60:.1f} min; its cost is not that of the "
                "tests"
            ),
        )
    return suite_cost.report(cost, f"make bench-tests ARGS='--target {options.target}'")


def intervals_part(options: argparse.Namespace) -> str:
    """Simulate studies, and count how often intervals cover the true value."""
    return interval_coverage.report(
        interval_coverage.measure(options.studies), f"make bench-intervals ARGS='--studies {options.studies}'"
    )


def stopping_part(options: argparse.Namespace) -> str:
    """Simulate studies whose replicates are chosen by precision."""
    return stopping_coverage.report(
        stopping_coverage.measure(options.cells), f"make bench-stopping ARGS='--cells {options.cells}'"
    )


def adjusted_part(options: argparse.Namespace) -> str:
    """Simulate studies with a reference benchmark, and measure what adjusting by it gains."""
    return adjusted_coverage.report(
        adjusted_coverage.measure(options.studies), _call(f"adjusted --studies {options.studies}")
    )


def tracing_part(options: argparse.Namespace) -> str:
    """Train with every other epoch traced."""
    chosen = [name for name in tracing_cost.FRAMEWORKS if name in options.frameworks]
    chosen_frameworks = (
        f" --frameworks {' '.join(chosen)}" if len(chosen) < len(tracing_cost.FRAMEWORKS) else ""
    )
    command = (
        f"make bench-tracing ARGS='--pairs {options.pairs} --epochs {options.epochs}{chosen_frameworks}'"
    )
    return tracing_cost.report(*tracing_cost.measure(chosen, options.pairs, options.epochs), command)


PARTS = {"study": study_part, "epochs": epochs_part, "dry-run": dry_run_part}
ON_REQUEST = {
    "ways": ways_part,
    "images": images_part,
    "input": input_part,
    "models": models_part,
    "analysis": analysis_part,
    "tests": tests_part,
    "intervals": intervals_part,
    "stopping": stopping_part,
    "adjusted": adjusted_part,
    "tracing": tracing_part,
}
TARGETS = (
    "input",
    "models",
    "analysis",
    "tests",
    "intervals",
    "stopping",
    "tracing",
)  # parts with a target of the Makefile


def _call(command: str) -> str:
    return f"make bench-overhead ARGS='{command}'"


def main(argv: list[str] | None = None) -> None:
    """Measure what the workflow itself costs, and print it as Markdown."""
    arguments = sys.argv[1:] if argv is None else argv
    target = arguments[0] if arguments and arguments[0] in TARGETS else "overhead"
    parser = argparse.ArgumentParser(prog=f"make bench-{target}", description=main.__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        default=list(PARTS),
        metavar="PART",
        help=f"{', '.join(PARTS)} (default: these), {', '.join(ON_REQUEST)}",
    )
    parser.add_argument("--write", action="store_true", help="put it into docs/measurements.md as well")
    parser.add_argument(
        "--runs",
        type=int,
        nargs="+",
        default=list(dry_runs.AIMS_S),
        help="dry-run: sizes of the designs; analysis: the last one",
    )
    parser.add_argument("--repetitions", type=int, default=3, help="dry-run: plan each design so many times")
    parser.add_argument(
        "--pairs", type=int, default=5, help="epochs, images, models: pairs of each; tracing: trainings"
    )
    parser.add_argument(
        "--epochs", type=int, default=8, help="epochs, ways, images, tracing: epochs a training"
    )
    parser.add_argument(
        "--frameworks",
        nargs="+",
        choices=sorted({*epoch_times.STARTS, *tracing_cost.FRAMEWORKS}),
        default=list(tracing_cost.FRAMEWORKS if target == "tracing" else epoch_times.STARTS),
        help="epochs, images, tracing: which ones",
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results/quickstart"), help="study: the finished campaign"
    )
    parser.add_argument(
        "--base", default=BASE, help="images: what they are built on, as in a site's images.base"
    )
    parser.add_argument(
        "--studies", type=int, default=60, help="intervals: simulate so many studies of each kind"
    )
    parser.add_argument(
        "--cells", type=int, default=1500, help="stopping: simulate so many cells of each kind of study"
    )
    parser.add_argument("--target", default="test", help="tests: which target of the Makefile")
    options = parser.parse_args(arguments)
    for name in options.parts:
        if name not in PARTS | ON_REQUEST:
            parser.error(f"{name} is no part; expected some of {', '.join(PARTS | ON_REQUEST)}")
    if options.epochs <= epoch_times.WARM_UP:
        parser.error(
            f"--epochs {options.epochs}: expected more than the {epoch_times.WARM_UP} that do not count"
        )
    for name in options.parts:
        part = (PARTS | ON_REQUEST)[name](options)
        print(f"{part}\n", flush=True)
        if options.write:
            write_part(name, part)


if __name__ == "__main__":
    sys.exit(exit_status(main))
