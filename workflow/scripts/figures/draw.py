"""Draw one figure of a study, of whichever kind, with its caption."""

import importlib
import sys
from pathlib import Path

from analysis import conditions
from analysis.measured import Records, arguments
from common.errors import exit_status
from common.files import write_text
from declared.figures import from_json
from figures import style
from precision import reached


def main(argv: list[str] | None = None) -> None:
    """Write the figure as .pdf, .svg and .png, and .caption.md, a paragraph."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--asked", required=True, metavar="JSON", help="the figure, as a study declares it (declared.figures)"
    )
    parser.add_argument("--epochs", type=Path, required=True, metavar="CSV", help="epochs.csv of the study")
    parser.add_argument("--network", type=Path, nargs="?", metavar="CSV", help="network.csv, where there are sweeps")
    parser.add_argument(
        "--predictions", type=Path, nargs="?", metavar="CSV", help="prediction_cells.csv (prediction.held_out)"
    )
    parser.add_argument(
        "--outlook", type=Path, nargs="?", metavar="CSV", help="outlook.csv, with its .md and its curves beside it"
    )
    parser.add_argument("--power", type=Path, nargs="?", metavar="CSV", help="power.csv, where machines have meters")
    parser.add_argument("--phases", type=Path, nargs="?", metavar="CSV", help="phases.csv, where there are traced runs")
    parser.add_argument("--trace-steps", type=Path, nargs="?", metavar="CSV", help="trace_steps.csv, likewise")
    parser.add_argument("--what-if", type=Path, nargs="?", metavar="CSV", help="what_if.csv, likewise")
    parser.add_argument("--crossover", type=Path, nargs="?", metavar="CSV", help="crossover.csv, where strategies vary")
    parser.add_argument(
        "--simulated", type=Path, nargs="?", metavar="CSV", help="simulated.csv, where layers are divided"
    )
    parser.add_argument(
        "--precision", type=Path, nargs="?", metavar="CSV", help="precision.csv, where replicates are chosen by it"
    )
    args = parser.parse_args(argv)
    asked = from_json(args.asked)
    kind = importlib.import_module(f"figures.{asked.kind}")
    beside = (args.network, args.predictions, args.outlook, args.power, args.phases, args.trace_steps, args.what_if)
    drawn, caption = kind.draw(Records(args.runs, args.epochs, *beside, args.crossover, args.simulated), asked)
    if args.precision and conditions.COUNTED in caption:
        caption += f" {reached.in_few_words(args.precision)}"
    style.save(drawn, args.out)
    write_text(args.out.with_name(f"{args.out.name}.caption.md"), caption + "\n")


if __name__ == "__main__":
    sys.exit(exit_status(main))
