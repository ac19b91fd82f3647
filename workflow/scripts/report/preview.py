"""Draw figures and tables from the records of a running campaign, without disturbing it: `ringside preview`.

Snakemake works in a mirror of the checkout in which results/<study>/ is results/<study>/preview/, so that the
campaign's own figures, tables and lock do not change. On the machine that measures, the preview holds the
machine's lock: nothing is drawn during a run, and the next run waits before its time starts. On a cluster's
login node no run holds that lock.
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
from common.run_status import RunStatus
from declared.configuration import check_name, existing_file
from declared.study import load_study
from launchers.processes import kill
from plan import unlock
from plan.binding import BINDING, raise_if_other_site
from plan.campaign import load_merged_config
from plan.decisions import DECISION_FOLDERS
from plan.design import raise_if_imported
from plan.ownership import raise_if_unwritable
from plan.record_status import record_status
from runs.machine_lock import machine_lock

NICE = 19
SHARED = (BINDING, "runs", *DECISION_FOLDERS, "network")  # linked from the campaign's results, and only read
NOT_MIRRORED = ("results", ".snakemake")  # Folders of which the preview has its own.


@contextlib.contextmanager
def workplace(results: Path, preview: Path) -> Iterator[Path]:
    """Yield a mirror of the checkout with `preview` as its results and as Snakemake's state."""
    memory = preview / ".snakemake"
    memory.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        if (results / name).exists() and not (preview / name).is_symlink():
            (preview / name).symlink_to(Path("..") / name)
    with tempfile.TemporaryDirectory(prefix="ringside-preview-") as folder:
        work = Path(folder)
        for entry in CHECKOUT.iterdir():
            if entry.name not in NOT_MIRRORED:
                (work / entry.name).symlink_to(entry)
        (work / "results").mkdir()
        (work / "results" / results.name).symlink_to(preview.resolve())
        (work / ".snakemake").symlink_to(memory.resolve())
        yield work


def draw(work: Path, targets: Sequence[str], config: Sequence[str]) -> int:
    """Build `targets` in the mirror and return Snakemake's exit status. Snakemake ends with this process."""
    with contextlib.chdir(work):
        unlock.main(if_stale=True)  # left by a preview that was killed
        command = [
            sys.executable,
            "-m",
            "snakemake",
            *targets,
            "--profile",
            "profiles/local",
            "--config",
            *config,
        ]
        snakemake = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            return snakemake.wait()
        finally:
            kill([snakemake])


def main(*, study: str = "", site: str = "", targets: Sequence[str] = ("figures",)) -> None:
    """Draw the runs of a running campaign so far into results/<study>/preview.

    Args:
        study: name of a file in config/studies/; default: the one in config.yaml
        site: name of a file in config/sites/; default: the one in config.yaml
        targets: targets of Snakemake, such as tables; default: figures and tables
    """
    os.nice(NICE)
    study = str(load_merged_config(study, site)["study"])
    check_name("study", study)
    existing_file(CHECKOUT / "config" / "studies", study, "study")
    raise_if_imported(load_study(study))
    results = Path("results") / study
    raise_if_other_site(results, site)
    raise_if_unwritable(results)
    statuses = map(record_status, results.glob("runs/*/*/record.json"))
    if (first := next(statuses, None)) != RunStatus.OK and RunStatus.OK not in statuses:
        code, ended = ("no-record", "ended") if first is None else ("no-success", "succeeded")
        raise InputError(
            code,
            f"no run has {ended} yet, so there is nothing to draw",
            file=results,
            hint="for details: ./ringside status",
        )

    def waiting(locked_by: str) -> None:
        print(f"preview: waiting for {locked_by}", flush=True)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))
    this_process = f"process {os.getpid()} on {node_name()}, which draws the records of {study} so far"
    folder = results / "preview"
    with machine_lock(this_process, waiting), workplace(results, folder) as work:
        named = [f"site={site}"] if site else []
        status = draw(work, targets, [f"study={study}", *named, "records=available"])
    if status:
        sys.exit(status)
    print(
        f"{folder}: figures/ and tables/ of the runs that have ended; the campaign's own figures and tables "
        "did not change"
    )


if __name__ == "__main__":
    sys.exit(run_program(main))
