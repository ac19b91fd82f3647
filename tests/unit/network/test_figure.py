"""The figure of the collective benchmark is drawn for any data, with all notes in its caption."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.conditions import states_run_counts
from analysis.records import Records
from common.notes import find_note
from common.schemas import schema
from common.tables import write_table
from declared.figure_specs import FigureSpec
from figures.captions import NOT_DRAWN
from figures.kinds import network as figure
from network import fit

from .conftest import benchmark_rows, failed_row

SPEC = FigureSpec("network", "network")


def draw(rows, folder):
    write_table(rows, "network", folder / "network.csv")
    return figure.draw(Records(Path("none"), Path("none"), {"network": folder / "network.csv"}), SPEC)


def texts(drawn):
    return [text.get_text() for ax in drawn.axes for text in ax.texts]


def bounds(drawn):
    return [line.get_ydata()[0] for ax in drawn.axes for line in ax.lines if list(line.get_xdata()) == [0, 1]]


def test_each_number_of_nodes_has_a_panel_with_a_bound(network, tmp_path):
    drawn, caption = draw(network, tmp_path)
    drawn.draw_without_rendering()
    assert [ax.get_title() for ax in drawn.axes] == ["2 nodes", "3 nodes"]
    assert bounds(drawn) == pytest.approx([125, 125])
    assert fit.rounds_text(network) in caption.partition("\n\n")[0]
    for note in (fit.setup_note, fit.link_rates_text, fit.missing_benchmarks_note):
        assert note(network) in caption
    assert find_note(caption.below, "placement").facts["placements"] == sorted(network["placement"].unique())
    assert states_run_counts("\n".join(caption.below))
    assert "nan" not in caption and len(caption.partition("\n\n")[0].split()) <= 70


def test_legend_names_the_only_framework_with_a_fit(network, tmp_path):
    poor = network[network["framework"] == "tensorflow-multiworker"].copy()
    poor.loc[poor["bytes"] == 2**20, "seconds"] *= 9
    rows = pd.concat([network[network["framework"] == "pytorch-ddp"], poor])
    drawn, caption = draw(rows, tmp_path)
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert find_note([*caption.below, *caption.endnotes], "fits-not-drawn").facts["deviations"].keys() == {
        "tensorflow-multiworker"
    }
    assert [label for label in labels if label.startswith("fit")] == ["fit, pytorch-ddp only"]


@pytest.mark.parametrize("nodes", [[2], [2, 3]])
def test_each_collective_has_its_own_row_of_panels(nodes, tmp_path):
    kinds = ["all_reduce", "all_gather", "reduce_scatter"]
    rows = pd.concat(
        [benchmark_rows(nodes=n, seed=n, rounds=2, collective=kind) for kind in kinds for n in nodes]
    )
    drawn, caption = draw(rows, tmp_path)
    drawn.draw_without_rendering()
    titles = ["all-reduce", "all-gather", "reduce-scatter"]
    if nodes == [2]:
        assert [ax.get_title() for ax in drawn.axes] == titles and "2 nodes" in caption
    else:
        assert [ax.get_title() for ax in drawn.axes] == [
            f"{kind}, {n} nodes" for kind in titles for n in nodes
        ]
        assert len({ax.get_position().y0 for ax in drawn.axes}) == 3
    assert bounds(drawn) == pytest.approx([125] * len(drawn.axes))
    assert "all-reduce, all-gather and reduce-scatter" in caption and fit.factors_text(rows) in caption


@pytest.mark.parametrize("case", ["no benchmark", "all failed", "one size", "one round", "a panel failed"])
def test_figure_is_drawn_for_any_data(case, tmp_path):
    rows = benchmark_rows(rounds=1 if case == "one round" else 3)
    frames = {
        "no benchmark": pd.DataFrame(columns=list(schema("network")["properties"])),
        "all failed": failed_row(),
        "one size": rows[rows["bytes"] == 1024],
        "one round": rows,
        "a panel failed": pd.concat([rows.astype(object), failed_row().astype(object)], ignore_index=True),
    }
    drawn, caption = draw(frames[case], tmp_path)
    drawn.draw_without_rendering()
    assert len(texts(drawn)) == (case in ("no benchmark", "all failed", "a panel failed"))
    empty = case in ("no benchmark", "all failed")
    assert caption.startswith(NOT_DRAWN) == empty and (not empty or texts(drawn)[0] in caption)
    assert (fit.missing_benchmarks_note(frames[case]) in caption) == (case not in ("one size", "one round"))
    assert (fit.NO_BENCHMARK in caption) == (case == "no benchmark")
    assert caption.endswith(".") and "nan" not in caption
