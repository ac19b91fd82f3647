"""Repeat runs on request: `./ringside repeat`.

Putting the attempts aside and removing the final record is what repeats a run: Snakemake executes every run
without a record. Old attempts stay on disk.
"""

import fnmatch
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from common.errors import InputError
from common.run_status import RECORD_STATUSES
from common.text import number_of, suggest_pattern
from plan import ownership, unlock
from plan.binding import read_binding
from plan.campaign import Campaign, load_campaign, load_merged_config
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.design import raise_if_imported
from plan.largest import BatchSearches
from plan.record_status import record_status
from plan.timings import Timings
from records.next_commands import cluster_commands
from runs.attempts import put_aside

SELECTOR = f"a status ({', '.join(RECORD_STATUSES)}) or a pattern of run_id"
# Prefixes of the names of measurements that are not runs.
NAME_PREFIXES = {"collective benchmark": "benchmark.", "timing": "timing.", "batch search": "largest."}


def select_measurements(campaign: Campaign, selector: str) -> dict[str, Path]:
    """Return the paths of records with the status `selector`, or with a name that matches it, by name.

    Collective benchmarks are named `benchmark.<framework>.n<nodes>`, timings `timing.<framework>.messages`,
    and searches for the largest batch `largest.<cell>`.
    """
    benchmarks = {
        f"{NAME_PREFIXES['collective benchmark']}{name}": path
        for name, path in CollectiveBenchmarks(campaign).record_paths.items()
    }
    timings = {
        f"{NAME_PREFIXES['timing']}{name}": path for name, path in Timings(campaign).record_paths.items()
    }
    searches = {
        f"{NAME_PREFIXES['batch search']}{name}": path
        for name, path in BatchSearches(campaign).record_paths.items()
    }
    record_paths = {**benchmarks, **timings, **searches, **campaign.record_paths}
    existing = {name: Path(path) for name, path in record_paths.items() if Path(path).exists()}
    if selector in RECORD_STATUSES:
        return {name: path for name, path in existing.items() if record_status(path) == selector}
    return {name: path for name, path in existing.items() if fnmatch.fnmatchcase(name, selector)}


def count_by_kind(names: Iterable[str]) -> str:
    """Return how many runs, benchmarks, timings and searches there are among `names`, as text."""
    kinds = [
        next((kind for kind, prefix in NAME_PREFIXES.items() if name.startswith(prefix)), "run")
        for name in names
    ]
    return " and ".join(
        number_of(kinds.count(kind), kind) for kind in ("run", *NAME_PREFIXES) if kind in kinds
    )


def repeat_runs(selector: str, study: str = "", site: str = "", run: bool = True) -> None:
    """Put the attempts of runs aside, so that the runs are repeated.

    Args:
        selector: A status of records, or a pattern of run ids.
        study: A study; default: the configured one.
        site: A site; default: the one to which the study's results are bound, else the configured one.
        run: Execute them now if the site is this machine. This does not return; it exits with Snakemake's
            status.

    Raises:
        InputError: If no run is selected, or a campaign is running in this checkout.
    """
    config = load_merged_config(study, site)
    bound = read_binding(Path("results") / config["study"])
    if bound and not site:
        config["site"] = bound["site"]  # The results are bound to this site, whatever is configured now.
    campaign = load_campaign({**config, "records": "campaign"})
    raise_if_imported(campaign.study)
    selected = select_measurements(campaign, selector)
    if not selected and selector in RECORD_STATUSES:
        problem = f"no run of {campaign.study.name} has the status {selector}"
        raise InputError("nothing-to-repeat", problem, got=selector)
    if not selected:
        problem = f"'{selector}': no run of {campaign.study.name} that has a record matches"
        suggestion = suggest_pattern(selector, campaign.record_paths, RECORD_STATUSES)
        raise InputError("unknown-name", problem, got=selector, expected=SELECTOR, suggestion=suggestion)
    ownership.raise_if_unwritable(campaign.results)
    if not ownership.hold(Path(".snakemake")):
        problem = "a campaign is running in this checkout"
        raise InputError(
            "campaign-running", problem, hint="nothing was changed; repeat runs when it has ended"
        )
    unlock.main(if_stale=True)
    for path in selected.values():
        put_aside(path)
    ownership.release()
    print(f"{count_by_kind(selected)} will be repeated; old attempts are kept", flush=True)
    arguments = [f"study={config['study']}", f"site={config['site']}"]
    if campaign.site.launcher != "local":
        print(
            "to run them: "
            f"{cluster_commands(campaign.site.launcher, campaign.study.name, campaign.site.name)}"
        )
    elif run:
        sys.exit(subprocess.run(["snakemake", "figures", "--config", *arguments], check=False).returncode)
