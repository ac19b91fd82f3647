"""Templates for own analyses run unchanged and agree with the table of effects."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis import study
from analysis.starters import write
from support.synthetic import campaign, write_frames
from virtual_cluster.control import INSTALL

R = ("r-base-core", "r-cran-dplyr", "r-cran-ggplot2", "r-cran-readr")
JUPYTER = ("python3-nbclient", "python3-ipykernel", "python3-pandas", "python3-matplotlib", "python3-scipy")
TITLE = 'Does it "pay"? 50 % of \\n {curly}'
EXECUTE = (
    "import sys, nbclient, nbformat; notebook = nbformat.read(sys.argv[1], 4); "
    "nbclient.NotebookClient(notebook).execute(); nbformat.write(notebook, sys.argv[1])"
)


@pytest.fixture
def left(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of results with templates; records are in `records/` or next to the tables."""

    def output(runs: pd.DataFrame, epochs: pd.DataFrame, records: str = ".") -> Path:
        folder = tmp_path / records
        folder.mkdir(exist_ok=True)
        runs_csv, epochs_csv = write_frames(folder, runs, epochs)
        study.main(runs=runs_csv, epochs=epochs_csv, out=tmp_path / "tables")
        write.main(runs=runs_csv, title=TITLE, question="Why?", out=tmp_path)
        return tmp_path

    return output


def cells_run(folder: Path) -> str:
    """Return what the notebook's cells print when plain Python executes them in order."""
    cells = json.loads((folder / write.NOTEBOOK).read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 4 and TITLE in "".join(cells[0]["source"])
    program = "import matplotlib; matplotlib.use('Agg')\n" + "\n".join(code) + "\nfig.savefig('drawn.png')\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "drawn.png").stat().st_size > 5000
    return done.stdout


def test_the_notebook_runs_and_agrees_with_the_table_of_effects(left: Callable[..., Path]) -> None:
    folder = left(*campaign(), records="records")
    printed = cells_run(folder)
    first = pd.read_csv(folder / "tables" / "effects.csv").query("within_blocks > 0").iloc[0]
    assert (
        printed.startswith("110 of 114 ") and f"{first['ratio']:.3f} [" in printed and write.AGREES in printed
    )


def test_a_changed_run_is_seen_by_the_notebook(left: Callable[..., Path]) -> None:
    runs, epochs = campaign()
    folder = left(runs, epochs)
    first = pd.read_csv(folder / "tables" / "effects.csv").query("within_blocks > 0").iloc[0]
    changed = pd.read_csv(folder / "runs.csv")
    changed.loc[changed["cell"] == first["to_cell"], "epoch_time_s"] *= 1.001
    changed.to_csv(folder / "runs.csv", index=False)
    with pytest.raises(AssertionError, match=write.DISAGREES):
        cells_run(folder)


def test_without_any_result_the_notebook_says_so(left: Callable[..., Path]) -> None:
    runs, epochs = campaign(replicates=1)
    assert write.NO_TEST in cells_run(left(runs.assign(status="failed", epoch_time_s=None), epochs[:0]))


@pytest.mark.starters
def test_r_and_jupyter_run_the_starters(left: Callable[..., Path]) -> None:
    subprocess.run([INSTALL, *R, *JUPYTER], check=True)
    folder = left(*campaign())
    for command, drawn in (
        (["Rscript", write.SCRIPT], "explore-cells.pdf"),
        (["/usr/bin/python3", "-c", EXECUTE, write.NOTEBOOK], ""),
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not drawn or (write.AGREES in done.stdout and (folder / drawn).stat().st_size > 5000), (
            done.stdout
        )
    cells = json.loads((folder / write.NOTEBOOK).read_text())["cells"]
    outputs = json.dumps([cell.get("outputs") for cell in cells])
    assert write.AGREES in outputs and "image/png" in outputs


@pytest.mark.starters
def test_r_says_that_there_is_nothing_to_test(left: Callable[..., Path]) -> None:
    runs, epochs = campaign(replicates=1)
    folder = left(runs.assign(status="failed", epoch_time_s=None), epochs[:0])
    done = subprocess.run(["Rscript", write.SCRIPT], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and write.NO_TEST in done.stdout, done.stderr
