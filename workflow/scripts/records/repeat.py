"""Ask for runs to be repeated. Old attempts are kept; the next invocation makes new ones."""

import fnmatch
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from common.errors import InputError
from common.text import number_of, suggest_pattern
from plan import ownership, unlock
from plan.binding import read_binding
from plan.campaign import Campaign, configured, load_campaign
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


def repeat_runs(wanted: str, study: str = "", site: str = "", run: bool = True) -> None:
    """Put the finished attempts of runs aside, so that they are repeated.

    Args:
        wanted: A status of records, or a pattern of run ids.
        study: A study; default: the configured one.
        site: A site; default: that at which the study's results were made, else the configured one.
        run: Then run them, if the site is this machine.

    Raises:
        InputError: If no run is meant, or a campaign is running in this checkout.
    """
    config = configured(study, site)
    bound = read_binding(Path("results") / config["study"])
    if bound and not site:
        config["site"] = bound["site"]  # where these results were made, whatever is configured now
    campaign = load_campaign({**config, "records": "campaign"})
    runs = chosen(campaign, wanted)
    if not runs and wanted in STATUSES:
        problem = f"no run of {campaign.study.name} is {wanted}"
        raise InputError("nothing-to-repeat", problem, got=wanted, hint="nothing to repeat")
    if not runs:
        problem = f"'{wanted}': no run of {campaign.study.name} that has a record matches"
        meant = suggest_pattern(wanted, campaign.records, STATUSES)
        raise InputError("unknown-name", problem, got=wanted, expected=WANTED, suggestion=meant)
    if not ownership.hold(Path(".snakemake")):
        problem = "a campaign is running in this checkout"
        raise InputError("campaign-running", problem, hint="nothing was changed; repeat runs when it has ended")
    unlock.main(if_stale=True)
    for path in runs.values():
        put_aside(path)
    ownership.release()
    print(f"{counted(runs)} will be repeated; their old attempts are kept", flush=True)
    named = [f"study={config['study']}", f"site={config['site']}"]
    if campaign.site.launcher != "local":
        print(f"to run them: {ways_to_run(campaign.site.launcher, campaign.study.name, campaign.site.name)}")
    elif run:
        sys.exit(subprocess.run(["snakemake", "figures", "--config", *named], check=False).returncode)
