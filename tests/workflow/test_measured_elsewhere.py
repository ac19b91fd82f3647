"""Given measurements made elsewhere, figures, report and archive need no run, site, environment or data set."""

from collections.abc import Callable

from support.checkout import Checkout
from support.measured_elsewhere import FOLDER

NAME = "measured-mlperf"
MEASURING = {"run", "environment", "dataset", "design", "aggregate", "collective_benchmark"}


def imported(fresh: Callable[..., Checkout]) -> Checkout:
    text = (FOLDER / f"{NAME}.yaml").read_text()
    checkout = fresh(text)
    checkout.write(f"config/studies/{NAME}.yaml", f"{text}figures: [{{kind: overview}}]\n")
    return checkout


def test_imported_study_is_planned_without_runs(fresh: Callable[..., Checkout]) -> None:
    checkout = imported(fresh)
    planned = checkout.snakemake("-n", "figures", "report", "paper", "archive", "--config", f"study={NAME}")
    assert planned.status == 0, planned.output
    assert {"analysis", "figure", "report", "paper_parts", "archived"} <= set(planned.jobs)
    assert not MEASURING & set(planned.jobs)


def test_imported_study_is_drawn_and_archived(fresh: Callable[..., Checkout]) -> None:
    checkout = imported(fresh)
    archived = checkout.snakemake("archived", "--config", f"study={NAME}")
    assert archived.status == 0, archived.output
    results = checkout.folder / "results" / NAME
    assert (results / f"{NAME}.tar.gz").is_file() and (results / "figures" / "overview.pdf").is_file()
    assert "Measured elsewhere" in (results / "figures" / "overview.caption.md").read_text()
    verified = checkout.program("ringside", "verify", NAME)
    assert verified.returncode == 0, verified.stdout + verified.stderr
