"""Plan every shipped study with every profile, and the configured study at every shipped site: `snakemake -n` must succeed.

Run in the checkout. A study is planned with every profile (with one of those that differ in the words of a submission only), at
its site or at one that has the nodes and devices that the study asks for; there must be one. Results
that are there belong to one site, so the plans are made in a folder that has all of the checkout but them.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common import warm
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
ALIKE = (
    "oar",
    "pbs",
    "flux",
)  # profiles that differ only in how a job is submitted: each study is planned with one of them


@dataclass(frozen=True)
class Plan:
    """A dry-run: a profile, and what differs from the configuration."""

    profile: str
    settings: tuple[str, ...]

    def run(self, folder: Path) -> tuple[bool, str]:
        """Whether it succeeded in `folder`, and what to say."""
        command = ["snakemake", "-n", "report", "--profile", f"profiles/{self.profile}", "--config", *self.settings]
        command = [sys.executable, "-IS", warm.__file__, *command]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        planned = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("total ")]
        ok = done.returncode == 0 and bool(planned)  # in a folder without results there is always something to do
        jobs = f"{planned[0]} jobs" if ok else "FAILED" if done.returncode else "FAILED, nothing was planned"
        said = f"dry-run {' '.join(self.settings)} with profile {self.profile}: {jobs}"
        return ok, said if ok else f"{said}\n{done.stdout}{done.stderr}"


def plans() -> list[Plan]:
    """All dry-runs to make."""
    shipped = {path.parent.name for path in Path("profiles").glob("*/config.yaml")} - {"default"}
    if unknown := shipped - {profile for names in PROFILES.values() for profile in names}:
        raise InputError(f"profiles/{min(unknown)}: no launcher of tests/checks/dry_run.py has this profile")
    sites = {path.stem: load_site(path.stem) for path in sorted(Path("config/sites").glob("*.yaml"))}
    profiles = {profile: _configured_site(profile) for names in PROFILES.values() for profile in names}
    made = []
    for turn, study in enumerate(sorted(path.stem for path in Path("config/studies").glob("*.yaml"))):
        wanted = load_study(study)
        fitting = [name for name, site in sites.items() if fits(wanted, site)]
        if not fitting:
            raise InputError(f"config/studies/{study}.yaml: no shipped site has the nodes and devices for it")
        for profile, configured in profiles.items():
            there = [name for name in fitting if profile in PROFILES[sites[name].launcher]]
            if there and profile not in ALIKE[: turn % 3] + ALIKE[turn % 3 + 1 :]:
                site = configured if configured in there else there[0]
                made.append(Plan(profile, (f"study={study}", f"site={site}")))
    for name, site in sites.items():
        if fits(load_study(load_yaml(Path("config/config.yaml"))["study"]), site):
            made += [
                Plan(profile, (f"site={name}",)) for profile in PROFILES[site.launcher] if profiles[profile] != name
            ]
    return made


def fits(study: Study, site: Site) -> bool:
    """Whether a site has the nodes and devices that a study asks for."""
    factors = study.factors
    return max(factors["nodes"]) <= site.nodes and max(factors["devices_per_node"]) <= site.ranks_per_node


def _configured_site(profile: str) -> str:
    files = load_yaml(Path("profiles", profile, "config.yaml")).get("configfile", ["config/config.yaml"])
    site: str = load_yaml(Path(files[0]))["site"]
    return site


def main() -> None:
    """Exit status 1 when one of the plans fails."""
    os.environ[warm.VARIABLE] = warm.start()  # Snakemake is imported once
    with tempfile.TemporaryDirectory(prefix="ringside-") as folder:
        for entry in Path.cwd().iterdir():
            if entry.name not in ("results", ".snakemake"):
                Path(folder, entry.name).symlink_to(entry)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            results = list(pool.map(lambda plan: plan.run(Path(folder)), plans()))
    for ok, said in results:
        print(said, file=sys.stdout if ok else sys.stderr)
    if not all(ok for ok, _ in results):
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(exit_status(main))
