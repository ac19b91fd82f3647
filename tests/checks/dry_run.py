"""Plan shipped studies at shipped sites with shipped profiles: `snakemake -n` must succeed.

Run it in the checkout. By default, every study, profile and site is planned at least once, each study with the
profile that was planned least so far. With --all, a study is planned with every profile that fits it, and the
configured study with every profile of every site. Existing results belong to one site, so plans are made in a
folder that links to everything in the checkout except results.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common import prefork_server
from common.errors import InputError, exit_status
from common.files import load_yaml
from declared.site import Site, load_site
from declared.study import Study, load_study

PROFILES = {
    "local": ("local",),
    "slurm": ("slurm", "allocation"),
    "oar": ("oar",),
    "pbs": ("pbs",),
    "flux": ("flux",),
}  # by the launcher of a site


@dataclass(frozen=True)
class Plan:
    """A dry-run of a study at a site with a profile."""

    profile: str
    study: str
    site: str

    def run(self, folder: Path) -> tuple[bool, str]:
        """Return whether planning in `folder` succeeded, and a line for the terminal."""
        settings = (f"study={self.study}", f"site={self.site}")
        command = [
            "snakemake",
            "-n",
            "report",
            "--profile",
            f"profiles/{self.profile}",
            "--config",
            *settings,
        ]
        command = [sys.executable, "-IS", prefork_server.__file__, *command]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        planned = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("total ")]
        # In a folder without results, there is always something to do.
        ok = done.returncode == 0 and bool(planned)
        jobs = f"{planned[0]} jobs" if ok else "FAILED" if done.returncode else "FAILED, nothing was planned"
        line = f"dry-run {' '.join(settings)} with profile {self.profile}: {jobs}"
        return ok, line if ok else f"{line}\n{done.stdout}{done.stderr}"


def all_plans() -> list[Plan]:
    """Return plans of every study with every fitting profile, and of the configured study at every fitting site."""
    shipped = {path.parent.name for path in Path("profiles").glob("*/config.yaml")} - {"default"}
    if unknown := shipped - {profile for names in PROFILES.values() for profile in names}:
        problem = "no launcher of tests/checks/dry_run.py has this profile"
        raise InputError("unused-profile", problem, file=f"profiles/{min(unknown)}")
    sites = {path.stem: load_site(path.stem) for path in sorted(Path("config/sites").glob("*.yaml"))}
    configured_sites = {
        profile: _configured_site(profile) for names in PROFILES.values() for profile in names
    }
    plans = []
    for name in sorted(path.stem for path in Path("config/studies").glob("*.yaml")):
        study = load_study(name)
        fitting = [site for site in sites if fits(study, sites[site])]
        if not fitting:
            problem = "no shipped site has the nodes and devices for it"
            raise InputError("no-fitting-site", problem, file=f"config/studies/{name}.yaml")
        for profile, configured in configured_sites.items():
            usable = [site for site in fitting if profile in PROFILES[sites[site].launcher]]
            if usable:
                plans.append(Plan(profile, name, configured if configured in usable else usable[0]))
    default = load_yaml(Path("config/config.yaml"))["study"]
    for name, site in sites.items():
        if fits(load_study(default), site):
            plans += [Plan(profile, default, name) for profile in PROFILES[site.launcher]]
    return list(dict.fromkeys(plans))


def covering_plans(plans: list[Plan]) -> list[Plan]:
    """Return a selection of plans that contains each of their studies, sites and profiles at least once."""
    chosen: list[Plan] = []
    uses: Counter[str] = Counter()
    for part in ("study", "site", "profile"):
        for name in sorted({getattr(plan, part) for plan in plans}):
            if not any(getattr(plan, part) == name for plan in chosen):
                candidates = [plan for plan in plans if getattr(plan, part) == name]
                plan = min(candidates, key=lambda plan: (uses[plan.profile], uses[plan.site]))
                chosen.append(plan)
                uses.update((plan.profile, plan.site))
    return chosen


def fits(study: Study, site: Site) -> bool:
    """Return whether a site has the nodes and devices that a study needs; an imported one needs none."""
    if study.imported:
        return True
    factors = study.factors
    return max(factors["nodes"]) <= site.nodes and max(factors["devices_per_node"]) <= site.ranks_per_node


def _configured_site(profile: str) -> str:
    files = load_yaml(Path("profiles", profile, "config.yaml")).get("configfile", ["config/config.yaml"])
    site: str = load_yaml(Path(files[0]))["site"]
    return site


def main() -> None:
    """Exit with status 1 if one of the plans fails."""
    parser = argparse.ArgumentParser(
        description="Plan shipped studies at shipped sites with shipped profiles."
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every study with every profile; default: each study, profile and site once",
    )
    arguments = parser.parse_args()
    os.environ[prefork_server.SERVER_VARIABLE] = prefork_server.start_server()  # Snakemake is imported once
    with tempfile.TemporaryDirectory(prefix="ringside-") as folder:
        for entry in Path.cwd().iterdir():
            if entry.name not in ("results", ".snakemake"):
                Path(folder, entry.name).symlink_to(entry)
        plans = all_plans() if arguments.all else covering_plans(all_plans())
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            results = list(pool.map(lambda plan: plan.run(Path(folder)), plans))
    for ok, line in results:
        print(line, file=sys.stdout if ok else sys.stderr)
    if not all(ok for ok, _ in results):
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(exit_status(main))
