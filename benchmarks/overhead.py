"""Measure the overhead of the workflow itself: `make bench-overhead ARGS='epochs --pairs 9 --write'`."""

import argparse
import sys
from collections.abc import Callable
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
from common.errors import exit_status
from declared.environments import BASE
from document import write_part

# Each part measures by its options, and returns its text for docs/measurements.md with the command.
PARTS: dict[str, Callable[[argparse.Namespace, str], str]] = {
    "study": lambda options, command: study_cost.report(*study_cost.measure(options.results), command),
    "epochs": lambda options, command: epoch_times.report(
        epoch_times.measure(options.frameworks, options.pairs, options.epochs), command
    ),
    "dry-run": lambda options, command: dry_runs.report(
        dry_runs.measure(options.runs, options.repetitions), command
    ),
    "ways": lambda options, command: ways.report(ways.measure(options.epochs), command),
    "images": lambda options, command: images.report(
        *images.measure(options.frameworks, options.pairs, options.epochs, options.base), command
    ),
    "input": lambda options, command: inputs.report(
        inputs.measure([inputs.own_case(*options.case)] if options.case else inputs.CASES), command
    ),
    "models": lambda options, command: models_by_hand.report(models_by_hand.measure(options.pairs), command),
    "analysis": lambda options, command: analysis_cost.report(
        options.epochs, *analysis_cost.measure(options.runs[-1], options.epochs), command
    ),
    "tests": lambda options, command: suite_cost.report(suite_cost.measure(options.target), command),
    "intervals": lambda options, command: interval_coverage.report(
        interval_coverage.measure(options.studies), command
    ),
    "stopping": lambda options, command: stopping_coverage.report(
        stopping_coverage.measure(options.cells), command
    ),
    "adjusted": lambda options, command: adjusted_coverage.report(
        adjusted_coverage.measure(options.studies), command
    ),
    "tracing": lambda options, command: tracing_cost.report(
        *tracing_cost.measure(options.frameworks, options.pairs, options.epochs), command
    ),
}
DEFAULT_PARTS = ("study", "epochs", "dry-run")
TARGETS = ("input", "models", "analysis", "tests", "intervals", "stopping", "tracing")  # of the Makefile


def main(argv: list[str] | None = None) -> None:
    """Measure the overhead of the workflow itself, and print it as Markdown."""
    arguments = sys.argv[1:] if argv is None else argv
    target = arguments[0] if arguments and arguments[0] in TARGETS else "overhead"
    parser = argparse.ArgumentParser(prog=f"make bench-{target}", description=main.__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        default=list(DEFAULT_PARTS),
        metavar="PART",
        help=f"of {', '.join(PARTS)}; default: the first {len(DEFAULT_PARTS)}",
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
    parser.add_argument(
        "--case",
        nargs=3,
        metavar=("DATASET", "MODEL", "BATCH"),
        help="input: only these, a data set of config/datasets.yaml, for example",
    )
    parser.add_argument("--target", default="test", help="tests: which target of the Makefile")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"{unknown[0]} is not a part; expected some of {', '.join(PARTS)}")
    if options.epochs <= epoch_times.WARM_UP:
        parser.error(
            f"--epochs {options.epochs}: expected more than the {epoch_times.WARM_UP} that do not count"
        )
    words = " ".join(word for word in arguments if word not in (target, "--write"))
    command = f"make bench-{target}" + (f" ARGS='{words}'" if words else "")
    for name in options.parts:
        part = PARTS[name](options, command)
        print(f"{part}\n", flush=True)
        if options.write:
            write_part(name, part)


if __name__ == "__main__":
    sys.exit(exit_status(main))
