"""A study's figures are those that it declares.

A changed declaration redraws its figure alone. From published tables: no training.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.tables import write_table
from support.checkout import SMALL_STUDY, Checkout, Invocation, stamp
from support.synthetic import benchmarks, write_campaign

STUDY = "config/studies/quickstart.yaml"
FIGURES = """\
figures:
  - {kind: by_factor, x: nodes, filter: {sync_every: 1}}
  - {kind: overview, name: small, filter: {batch_size: 16}}
"""
NEW_KIND = """\
run_count:
  question: How many?
  shows: The repetitions of the network.
  reading: Read it.
  drawn_by_default: no study; declare it
  default_figures: []
  inputs: [network]
  example: {study: quickstart, figure: {}}
"""
NEW_MODULE = """\
from figures import style


def draw(records, asked):
    return style.new_figure(style.COLUMN_INCHES, 1), f"{len(records.table('network'))} repetitions."
"""
SUFFIXES = ("caption.md", "pdf", "png", "svg")


@pytest.fixture
def published(fresh: Callable[..., Checkout]) -> Checkout:
    """A checkout with the tables of a campaign of quickstart, which declares two figures."""
    checkout = fresh(SMALL_STUDY)
    checkout.path("published").mkdir()
    write_campaign(checkout.path("published"))
    checkout.write(STUDY, checkout.path(STUDY).read_text() + FIGURES)
    return checkout


def figures(checkout: Checkout) -> Invocation:
    return checkout.snakemake("figures", "--config", "study=quickstart", "records=published")


def drawn(checkout: Checkout) -> dict[str, str]:
    """Return the stamp of each file of a figure."""
    folder: Path = checkout.folder / "results" / "quickstart" / "figures"
    return {path.name: stamp(path) for path in folder.iterdir()}


def test_declared_figures_are_drawn_and_a_change_redraws_its_own(published: Checkout) -> None:
    done = figures(published)
    assert done.status == 0, done.output
    assert done.jobs["figure"] == 2
    before = drawn(published)
    assert set(before) == {f"{name}.{suffix}" for name in ("by_factor-nodes", "small") for suffix in SUFFIXES}
    assert (figures(published).status, figures(published).jobs) == (0, {})

    published.edit(STUDY, "{batch_size: 16}", "{batch_size: [16, 64]}")
    done = figures(published)
    assert (done.status, done.jobs) == (0, {"figure": 1}), done.output
    again = drawn(published)
    assert {name for name in before if before[name] != again[name]} == {
        f"small.{suffix}" for suffix in SUFFIXES
    }
    caption = published.folder / "results" / "quickstart" / "figures" / "small.caption.md"
    assert "Shown: only batch size 16, 64." in caption.read_text()

    published.edit(STUDY, "  - {kind: by_factor, x: nodes, filter: {sync_every: 1}}\n", "")
    assert figures(published).jobs == {}, "what is declared no more is not drawn again"


def test_entry_and_module_are_all_that_a_new_figure_needs(published: Checkout) -> None:
    registry = "workflow/scripts/declared/products/figures.yaml"
    published.write(registry, published.path(registry).read_text() + NEW_KIND)
    published.write("workflow/scripts/figures/kinds/run_count.py", NEW_MODULE)
    published.write(STUDY, published.path(STUDY).read_text() + "  - {kind: run_count}\n")
    network = benchmarks("pytorch-ddp")
    write_table(network, "network", published.path("published/network.csv"))
    files = [f"results/quickstart/figures/run_count.{suffix}" for suffix in ("pdf", "caption.md")]
    done = published.snakemake(*files, "--config", "study=quickstart", "records=published")
    assert (done.status, done.jobs) == (0, {"figure": 1}), done.output
    assert published.path(files[1]).read_text() == f"{len(network)} repetitions.\n" != "0 repetitions.\n"
