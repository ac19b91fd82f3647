"""Start the program of a run under the site's Score-P, which writes to the attempt's folder."""

import shutil
from pathlib import Path

from common.errors import InputError
from common.files import display_path, read_json, write_json
from common.notes import Note
from common.run_status import RunStatus
from declared.site import Site
from environments import scorep
from environments.installed import PROGRAM_VARIABLE
from environments.record import BuiltEnvironment
from ranks.worker.node import machine
from ranks.worker.operators import unix_ahead


def wrap_program(
    environment: BuiltEnvironment, site: Site, version: str, attempt_folder: Path
) -> BuiltEnvironment:
    """Return an environment that starts its program under Score-P, which writes to the attempt's folder.

    Raises:
        InputError: If the site's Score-P cannot be used, or has another version than was planned.
    """
    if site.scorep is None or scorep.version(site.scorep) != version:
        problem = f"is not Score-P {version}, which was planned"
        raise InputError(
            "changed-since-planned",
            problem,
            file=display_path(site.file),
            key="scorep",
            hint="start Snakemake again",
        )
    program = environment["variables"][PROGRAM_VARIABLE]
    script = scorep.write_start_script(
        site.scorep, program, attempt_folder, (*site.setup, *environment.get("setup", ()))
    )
    return {
        **environment,
        "variables": {**environment["variables"], PROGRAM_VARIABLE: str(script)},
        "packages": {**environment["packages"], scorep.PACKAGE: version},
    }


def finish_trace(attempt_folder: Path, status: RunStatus) -> Note | None:
    """Remove the start script, and write the offset between the clocks of Score-P and of the ranks.

    The offset is written only for ranks with status OK, and only if rank 0 ran on this machine.

    Returns:
        Why Score-P left no trace although the status is OK, else None.
    """
    shutil.rmtree(attempt_folder / scorep.START_FOLDER)
    if status != RunStatus.OK:
        return None
    if not (attempt_folder / scorep.ANCHOR).exists():
        return Note("no-trace", f"Score-P left no {scorep.ANCHOR}", file=str(scorep.ANCHOR))
    if read_json(attempt_folder / "result.json")["ranks"][0]["machine"] == machine():
        import pandas as pd

        began = float(pd.read_csv(attempt_folder / "phases-0.csv")["start"].min())
        write_json(attempt_folder / scorep.CLOCK, {"rank_0_began": began + unix_ahead()})
    return None
