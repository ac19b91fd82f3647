"""Figures and tables of the records that are there now, beside a campaign and without disturbing it: `ringside preview`.

They are made in results/<study>/preview/, by Snakemake, in a folder that looks like the checkout but whose results are that
one: so the campaign's own figures, tables, and Snakemake's lock stay untouched. Where this machine is the one that measures,
its lock is taken, so nothing is drawn beside a run: the next run waits until all is drawn, before its time begins. On
the login node of a cluster nobody holds that lock.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import InputError
from common.files import CHECKOUT, node_name
from common.options import run_program
from declared.configuration import check_name, existing
from launchers.launch import kill
from plan import unlock
from plan.binding import BINDING
from plan.campaign import configured
from plan.recorded import record_status
from runs.attempts import machine_lock

NICE = 19
SHARED = (BINDING, "runs", "precision", "network")  # of the campaign's results: read, never written
OWN = ("results", ".snakemake")  # what is not the checkout's own in the folder that looks like it


@contextlib.contextmanager
def workplace(results: Path, preview: Path) -> Iterator[Path]:
    """A folder that looks like the checkout, with `preview` in the place of `results` (results/<study>) and of Snakemake's state."""
    memory = preview / ".snakemake"
    memory.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        if (results / name).exists() and not (preview / name).is_symlink():
            (preview / name).symlink_to(Path("..") / name)
    with tempfile.TemporaryDirectory(prefix="ringside-preview-") as folder:
        work = Path(folder)
        for entry in CHECKOUT.iterdir():
            if entry.name not in OWN:
                (work / entry.name).symlink_to(entry)
        (work / "results").mkdir()
        (work / "results" / results.name).symlink_to(preview.resolve())
        (work / ".snakemake").symlink_to(memory.resolve())
        yield work


def draw(work: Path, targets: Sequence[str], config: Sequence[str]) -> int:
    """Make `targets` in the workplace; Snakemake's exit status. Whatever ends this process ends Snakemake and its programs, too."""
    with contextlib.chdir(work):
        unlock.main(if_stale=True)  # of a preview that was killed
        command = [sys.executable, "-m", "snakemake", *targets, "--profile", "profiles/local", "--config", *config]
        snakemake = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            return snakemake.wait()
        finally:
            kill([snakemake])


def main(*, study: str = "", site: str = "", only: Sequence[str] = ("figures",)) -> None:
    """Draw the runs so far, beside a campaign, into results/<study>/preview.

    Args:
        study: name of a file in config/studies/; default: that of config.yaml
        site: name of a file in config/sites/; default: that of config.yaml
        only: targets of Snakemake, such as tables; default: figures and tables
    """
    os.nice(NICE)
    study = str(configured(study, site)["study"])
    check_name("study", study)
    existing(CHECKOUT / "config" / "studies", study, "study")
    results = Path("results") / study
    statuses = map(record_status, results.glob("runs/*/*/record.json"))
    if (first := next(statuses, None)) != "ok" and "ok" not in statuses:
        code, ended = ("no-record", "ended") if first is None else ("no-success", "succeeded")
        raise InputError(
            code,
            f"no run has {ended} yet, so there is nothing to draw",
            file=results,
            hint="for details: ./ringside status",
        )

    def waiting(holder: str) -> None:
        print(f"preview: waiting for {holder or 'another run'}", flush=True)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    holder = f"process {os.getpid()} on {node_name()}, which draws what is there so far of {study}"
    folder = results / "preview"
    with machine_lock(holder, waiting), workplace(results, folder) as work:
        named = [f"site={site}"] if site else []
        status = draw(work, only, [f"study={study}", *named, "records=available"])
    if status:
        sys.exit(status)
    print(
        f"{folder}: figures/ and tables/ of the runs that have ended; the campaign's own figures and tables did not change"
    )


if __name__ == "__main__":
    sys.exit(run_program(main))
