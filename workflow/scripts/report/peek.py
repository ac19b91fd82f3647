"""Figures and tables of the records that are there now, beside a campaign and without disturbing it: `make peek`.

They are made in results/<study>/peek/, by Snakemake, in a folder that looks like the checkout but whose results are that
one: so the campaign's own figures, tables, and Snakemake's lock stay untouched. Where this machine is the one that measures,
its lock is taken, so nothing is drawn beside a run: the next run waits until all is drawn, before its time begins. On
the login node of a cluster nobody holds that lock.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import InputError, exit_status
from common.files import CHECKOUT
from declared.configuration import check_name, existing
from launchers.launch import kill
from plan import unlock
from plan.binding import BINDING
from plan.campaign import add_config_argument, configured
from plan.recorded import record_status
from runs.attempts import machine_lock

NICE = 19
SHARED = (BINDING, "runs", "precision", "network")  # of the campaign's results: read, never written
OWN = ("results", ".snakemake")  # what is not the checkout's own in the folder that looks like it


@contextlib.contextmanager
def workplace(results: Path, peek: Path) -> Iterator[Path]:
    """A folder that looks like the checkout, with `peek` in the place of `results` (results/<study>) and of Snakemake's state."""
    memory = peek / ".snakemake"
    memory.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        if (results / name).exists() and not (peek / name).is_symlink():
            (peek / name).symlink_to(Path("..") / name)
    with tempfile.TemporaryDirectory(prefix="ringside-peek-") as folder:
        work = Path(folder)
        for entry in CHECKOUT.iterdir():
            if entry.name not in OWN:
                (work / entry.name).symlink_to(entry)
        (work / "results").mkdir()
        (work / "results" / results.name).symlink_to(peek.resolve())
        (work / ".snakemake").symlink_to(memory.resolve())
        yield work


def draw(work: Path, targets: Sequence[str], config: Sequence[str]) -> int:
    """Make `targets` in the workplace; Snakemake's exit status. Whatever ends this process ends Snakemake and its programs, too."""
    with contextlib.chdir(work):
        unlock.main(["--if-stale"])  # of a peek that was killed
        command = [sys.executable, "-m", "snakemake", *targets, "--profile", "profiles/local", "--config", *config]
        snakemake = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            return snakemake.wait()
        finally:
            kill([snakemake])


def main(argv: list[str] | None = None) -> None:
    """Draw what is there so far, beside a campaign, into results/<study>/peek."""
    parser = argparse.ArgumentParser(prog="make peek", description=main.__doc__)
    add_config_argument(parser)
    parser.add_argument(
        "--only",
        nargs="+",
        default=["figures"],
        metavar="TARGET",
        help="such as tables; figures and tables where absent",
    )
    options = parser.parse_args(argv)
    os.nice(NICE)
    study = str(configured(options.config)["study"])
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
            hint="for details: make status",
        )

    def waiting(holder: str) -> None:
        print(f"peek: waiting for {holder or 'another run'}", flush=True)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    holder = f"process {os.getpid()} on {os.uname().nodename}, which draws what is there so far of {study}"
    peek = results / "peek"
    with machine_lock(holder, waiting), workplace(results, peek) as work:
        named = [each for each in options.config if not each.startswith(("study=", "records="))]
        status = draw(work, options.only, [f"study={study}", *named, "records=available"])
    if status:
        sys.exit(status)
    print(
        f"{peek}: figures/ and tables/ of the runs that have ended; the campaign's own figures and tables did not change"
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
