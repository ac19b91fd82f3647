"""Two small campaigns that were measured elsewhere, made of published numbers.

Their folders name source and licence (import.yaml). DLPerf: four frameworks train ResNet-50 on 1 to 32 V100,
with 5 or 10 runs of a cell, and cells that share a node. MLPerf: a fixed global batch of 8 on 8 to 32 B200,
so that the batch of a device is 1 and less.
"""

from pathlib import Path

from common.files import CHECKOUT
from declared.study import Study, load_study

FOLDER = CHECKOUT / "tests" / "support" / "imported"
DLPERF, MLPERF = FOLDER / "dlperf", FOLDER / "mlperf"
STUDIES = {"measured-dlperf": DLPERF, "measured-mlperf": MLPERF}


def imported_study(name: str) -> Study:
    """Return a study of STUDIES."""
    return load_study(name, FOLDER)


def copy_of(folder: Path, to: Path) -> Path:
    """Copy an imported campaign, so that a test can change it, and return the copy."""
    to.mkdir(parents=True)
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to
