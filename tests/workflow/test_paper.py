"""What an author has written is kept, whatever Snakemake makes anew."""

from collections.abc import Callable
from pathlib import Path

from support.checkout import SMALL_STUDY, Checkout
from support.synthetic import write_campaign

MAIN = "results/quickstart/paper/main.tex"
PUBLISHED = ("--config", "study=quickstart", "records=published")


def test_main_tex_is_written_once(fresh: Callable[..., Checkout], tmp_path: Path) -> None:
    checkout = fresh(SMALL_STUDY)
    checkout.path("published").mkdir()
    write_campaign(checkout.path("published"))
    first = checkout.snakemake(MAIN, *PUBLISHED)
    assert first.status == 0 and r"\input{methods}" in checkout.path(MAIN).read_text(), first.output
    checkout.write(MAIN, "my own words")
    for arguments in ((), ("--forceall",)):
        again = checkout.snakemake(MAIN, *PUBLISHED, *arguments)
        assert again.status == 0 and checkout.path(MAIN).read_text() == "my own words", again.output
    checkout.path(MAIN).unlink()
    assert checkout.snakemake(MAIN, *PUBLISHED).status == 0 and checkout.path(MAIN).exists()


def test_the_paper_needs_all_tables_and_figures_and_no_run(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(SMALL_STUDY)
    checkout.path("published").mkdir()
    write_campaign(checkout.path("published"))
    planned = checkout.snakemake("paper", "-n", *PUBLISHED)
    assert planned.status == 0, planned.output
    assert {"paper_main", "paper_parts", "paper_pdf", "analysis", "figure"} <= set(
        planned.jobs
    ) and "run" not in planned.jobs
