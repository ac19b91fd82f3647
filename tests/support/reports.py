"""Made-up campaigns with all inputs of a report."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import study
from analysis.records import Records
from common.files import write_json, write_text
from declared.figure_specs import FigureSpec
from declared.study import load_study
from figures import panels, style
from plan.campaign import Campaign, load_campaign
from report import every_run, make
from report.checkout import State
from report.material import Material
from support.synthetic import write_frames

TABLES = ("cells", "speedup", "effects", "anova", "scaling", "missing", "checks", "regression")
PICTURES = {
    "overview": "Epoch time of every cell: markers are means. Replicates are independent runs, n = 3 per cell.",
    "residuals": "Residuals of the logarithm of epoch time. Replicates are independent runs, n = 3 per cell.",
}
COMMIT = State("0123456789abcdef0123456789abcdef01234567")
LOG = b"step 1\n\x1b[31mred\x1b[0m and plain\nlast line\n"


class CampaignFiles:
    """The files of a made-up campaign of the study quickstart."""

    def __init__(
        self,
        folder: Path,
        runs: pd.DataFrame,
        epochs: pd.DataFrame,
        pictures: Mapping[str, str] = PICTURES,
        tables: Collection[str] = TABLES,
    ) -> None:
        self.runs = runs
        self.results = folder / "results" / "quickstart"
        self.results.mkdir(parents=True)
        self.runs_csv, self.epochs_csv = write_frames(self.results, runs, epochs)
        self.tables = [self.results / "tables" / name for name in tables]
        possible = {spec.name: spec for spec in load_study("quickstart").possible_figure_specs}
        self.specs = [possible.get(name, FigureSpec(name, name)) for name in pictures]
        self.figures = [self.results / "figures" / name for name in pictures]
        study.main(runs=self.runs_csv, epochs=self.epochs_csv, out=self.results / "tables")
        for stem in self.figures:
            stem.parent.mkdir(parents=True, exist_ok=True)
            figure = style.new_figure(style.PAGE_INCHES, 2)
            panels.write_remark(figure.subplots(), stem.name)
            style.save(figure, stem)
            write_text(Path(f"{stem}.caption.md"), pictures[stem.name] + "\n")

    def leave_records(self, log: Callable[[str], bytes] = lambda run_id: LOG) -> None:
        """Write records and logs of the runs that have ended."""
        for row in self.runs.to_dict("records"):
            if row["status"] == "missing":
                continue
            folder = self.results / "runs" / row["run_id"] / row["key"]
            (folder / "attempt-1").mkdir(parents=True)
            record = {"run_id": row["run_id"], "status": row["status"], "packages": {"torch": "2.13.0"}}
            write_json(folder / "record.json", record)
            (folder / "attempt-1" / "log.txt").write_bytes(log(row["run_id"]))

    def campaign(self, records: str = "available") -> Campaign:
        """Return the campaign of these files."""
        return load_campaign({"study": "quickstart", "site": "local", "records": records})

    def material(self, records: str = "available") -> Material:
        """Return the inputs of its report."""
        phases = next(iter(self.results.glob("phases.csv")), None)
        files = Records(self.runs_csv, self.epochs_csv, {"phases": phases})
        folder = self.results / "figures"
        return make.read_material(self.campaign(records), files, self.specs, folder, self.tables)

    def details(self, records: str = "available") -> dict[str, dict[str, Any]]:
        """Return by run_id the details that the report shows of a run."""
        return {
            run["run_id"]: run
            for run in every_run.run_details(self.material(records), self.campaign(records))
        }

    def report(self, records: str = "available", state: State = COMMIT, out: str = "report.html") -> Path:
        """Build the report as its rule does, and return the page."""
        page = self.results / out
        make.main(
            study="quickstart",
            site="local",
            source=records,
            runs=self.runs_csv,
            epochs=self.epochs_csv,
            phases=next(self.results.glob("phases.csv"), None),
            figures=[spec.to_json() for spec in self.specs],
            figure_folder=self.results / "figures",
            tables=self.tables,
            checkout=state.to_json(),
            out=page,
        )
        return page
