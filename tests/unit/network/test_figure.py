"""The figure of the network is drawn whatever the sweeps hold, and says what it must."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.measured import Records
from common.schemas import schema
from common.tables import write_table
from declared.figures import Declared
from figures import network as figure

from .conftest import failed_row, sweep_rows

ASKED = Declared("network", "network")


def draw(rows, folder):
    write_table(rows, "network", folder / "network.csv")
    return figure.draw(Records(Path("none"), Path("none"), folder / "network.csv"), ASKED)


def texts(drawn):
    return [text.get_text() for ax in drawn.axes for text in ax.texts]


def bounds(drawn):
    return [line.get_ydata()[0] for ax in drawn.axes for line in ax.lines if list(line.get_xdata()) == [0, 1]]


def test_panels_are_numbers_of_nodes_and_the_link_bounds_each(network, tmp_path):
    drawn, caption = draw(network, tmp_path)
    drawn.draw_without_rendering()
    assert [ax.get_title() for ax in drawn.axes] == ["2 nodes", "3 nodes"]
    assert bounds(drawn) == pytest.approx([125, 125])
    for said in (
        "95 % t intervals",
        "Placement: virtual",
        "Rate of the links, as the site states it: 125 MB/s.",
        "n = 5 rounds in the same processes.",
        "25 repetitions of a size in a round",
        "Missing sweeps: horovod-pytorch on 2 nodes (failed: rank 1 ended with status 1: it broke).",
    ):
        assert said in caption
    assert "nan" not in caption and len(caption.partition("\n\n")[0].split()) <= 70


@pytest.mark.parametrize("nodes", [[2], [2, 3]])
def test_collectives_have_panels_in_a_row_of_their_own(nodes, tmp_path):
    kinds = ["all_reduce", "all_gather", "reduce_scatter"]
    rows = pd.concat([sweep_rows(nodes=n, seed=n, rounds=2, collective=kind) for kind in kinds for n in nodes])
    drawn, caption = draw(rows, tmp_path)
    drawn.draw_without_rendering()
    titles = ["all-reduce", "all-gather", "reduce-scatter"]
    if nodes == [2]:
        assert [ax.get_title() for ax in drawn.axes] == titles and "All on 2 nodes." in caption
    else:
        assert [ax.get_title() for ax in drawn.axes] == [f"{kind}, {n} nodes" for kind in titles for n in nodes]
        assert len({ax.get_position().y0 for ax in drawn.axes}) == 3
    assert bounds(drawn) == pytest.approx([125] * len(drawn.axes))
    assert "Bus bandwidth of all-reduce, all-gather and reduce-scatter by message size" in caption
    assert "2 (n − 1) / n of all-reduce; (n − 1) / n of all-gather and reduce-scatter." in caption


def test_without_the_links_rate_there_is_no_bound(tmp_path):
    drawn, caption = draw(sweep_rows(link_bytes_s=float("nan")), tmp_path)
    drawn.draw_without_rendering()
    assert bounds(drawn) == []
    assert "The site names no rate of its links." in caption and "All on 3 nodes." in caption


@pytest.mark.parametrize("case", ["no sweep", "all failed", "one size", "one round", "a panel failed"])
def test_it_is_drawn_whatever_there_is(case, tmp_path):
    rows = sweep_rows(rounds=1 if case == "one round" else 3)
    frames = {
        "no sweep": pd.DataFrame(columns=list(schema("network")["properties"])),
        "all failed": failed_row(),
        "one size": rows[rows["bytes"] == 1024],
        "one round": rows,
        "a panel failed": pd.concat([rows.astype(object), failed_row().astype(object)], ignore_index=True),
    }
    drawn, caption = draw(frames[case], tmp_path)
    drawn.draw_without_rendering()
    said = {
        "no sweep": "no sweep of the network",
        "all failed": "no successful sweep",
        "a panel failed": "no successful sweep",
    }
    assert texts(drawn) == ([said[case]] if case in said else [])
    assert caption.endswith(".") and "nan" not in caption
