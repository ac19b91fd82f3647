"""A measured study, which scaling projections are fitted to."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.records import read_timing_runs, with_batch_numbers
from common.tables import stored_file
from prediction.inputs import can_add_nodes, exclusion_note, is_heterogeneous, measured_cells, uses_mesh
from prediction.message_times import read_benchmark
from prediction.study_predictor import StudyPredictor


@dataclass(frozen=True)
class MeasuredStudy:
    """A study's runs, and the predictor that is fitted to its cells and collective benchmark."""

    runs: pd.DataFrame
    predictor: StudyPredictor

    @property
    def exclusion_note(self) -> str:
        """A note on the cells that the predictor does not use, "" if there are none."""
        is_used_mesh = uses_mesh(self.runs) & self.runs["cell"].isin(self.predictor.cells["cell"])
        return exclusion_note(self.runs[~is_used_mesh])


def load_study_folder(folder: Path) -> MeasuredStudy:
    """Return the study that has its runs.csv, and network.csv if it is benchmarked, in `folder`."""
    network = folder / "network.csv"
    return load_study_tables(folder / "runs.csv", network if stored_file(network).exists() else None)


def load_study_tables(runs_csv: Path, network_csv: Path | None) -> MeasuredStudy:
    """Return the study that has these tables; `network_csv` is None without a collective benchmark.

    Only meshes that nodes can be added to are used. The benchmark is smooth (`CollectiveBenchmark.smooth`),
    because curves pass through measured and unmeasured numbers of nodes.
    """
    runs = with_batch_numbers(read_timing_runs(runs_csv))
    cells = measured_cells(runs[~is_heterogeneous(runs)], include_meshes=True)
    cells = cells[~cells["uses_mesh"] | can_add_nodes(cells)].reset_index(drop=True)
    return MeasuredStudy(runs, StudyPredictor(cells, read_benchmark(network_csv, cells).smooth()))
