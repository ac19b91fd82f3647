"""Ask for runs to be repeated. Old attempts are kept; the next invocation makes new ones."""

import argparse
import fnmatch
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from common.errors import InputError, exit_status
from common.text import number_of
from plan import ownership, unlock
from plan.binding import read_binding
from plan.campaign import Campaign, add_config_argument, configured, load_campaign
from plan.recorded import STATUSES, record_status
from plan.sweeps import Sweeps
from plan.timings import Timings
from records.ways import ways_to_run
from runs.attempts import put_aside

WANTED = f"a status ({', '.join(STATUSES)}) or a pattern of run_id"
KINDS = {"sweep": "sweep.", "timing": "timing."}  # what beside runs is repeated, and how its names begin


def chosen(campaign: Campaign, wanted: str) -> dict[str, Path]:
    """The runs with a record whose status is `wanted`, or whose id matches it as a pattern (fnmatch).

    The sweeps of the network are runs, too: `sweep.<framework>.n<nodes>`, and so are timings: `timing.<framework>.messages`.
    """
    sweeps = {f"{KINDS['sweep']}{name}": path for name, path in Sweeps(campaign).outputs.items()}
    timings = {f"{KINDS['timing']}{name}": path for name, path in Timings(campaign).outputs.items()}
    known = {**sweeps, **timings, **campaign.records}
    there = {run_id: Path(path) for run_id, path in known.items() if Path(path).exists()}
    if wanted in STATUSES:
        return {run_id: path for run_id, path in there.items() if record_status(path) == wanted}
    return {run_id: path for run_id, path in there.items() if fnmatch.fnmatchcase(run_id, wanted)}


def counted(names: Iterable[str]) -> str:
    """How many runs, sweeps and timings the names are of, in words."""
    of = [next((kind for kind, begin in KINDS.items() if name.startswith(begin)), "run") for name in names]
    return " and ".join(number_of(of.count(what), what) for what in ("run", *KINDS) if what in of)


def main(argv: list[str] | None = None) -> None:
    """Put the finished attempts of runs aside, so that they are repeated."""
    parser = argparse.ArgumentParser(prog="make repeat", description=main.__doc__)
    parser.add_argument(
        "--runs", required=True, help=f"a status ({', '.join(STATUSES)}) or a pattern such as '*ddp*.b32.*'"
    )
    add_config_argument(parser)
    parser.add_argument("--run", action="store_true", help="then run them, if the site is this machine")
    options = parser.parse_args(argv)
    if not options.runs:
        raise InputError("missing-option", "is not set", file="RUNS", expected=WANTED, hint="make repeat RUNS=invalid")
    config = configured(options.config)
    bound = read_binding(Path("results") / config["study"])
    if bound and not any(argument.startswith("site=") for argument in options.config):
        config["site"] = bound["site"]  # where these results were made, whatever is configured now
    campaign = load_campaign({**config, "records": "campaign"})
    runs, given = chosen(campaign, options.runs), f"RUNS={options.runs}"
    if not runs and options.runs in STATUSES:
        problem = f"no run of {campaign.study.name} is {options.runs}"
        raise InputError("nothing-to-repeat", problem, file=given, got=options.runs, hint="nothing to repeat")
    if not runs:
        problem = f"no run of {campaign.study.name} that has a record matches"
        raise InputError("unknown-name", problem, file=given, got=options.runs, expected=WANTED)
    if not ownership.hold(Path(".snakemake")):
        problem = "a campaign is running in this checkout"
        raise InputError("campaign-running", problem, hint="nothing was changed; repeat runs when it has ended")
    unlock.main(["--if-stale"])
    for path in runs.values():
        put_aside(path)
    ownership.release()
    print(f"{counted(runs)} will be repeated; their old attempts are kept", flush=True)
    named = [f"study={config['study']}", f"site={config['site']}"]
    if campaign.site.launcher != "local":
        print(f"to run them: {ways_to_run(campaign.site.launcher, campaign.study.name, campaign.site.name)}")
    elif options.run:
        sys.exit(subprocess.run(["snakemake", "figures", "--config", *named], check=False).returncode)


if __name__ == "__main__":
    sys.exit(exit_status(main))
