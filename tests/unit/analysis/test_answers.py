"""The sentences that answer a study's question have the numbers of its tables, and call nothing equal."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import anova, answers, effects, tables
from analysis.measured import title
from support.synthetic import designed_campaign


def said(runs: pd.DataFrame) -> list[str]:
    found = answers.sentences(runs, effects.table(runs).data, anova.table(runs).data)
    return [str(sentence) for sentence in found]


def test_every_factor_has_a_sentence_with_the_extremes_of_the_table_of_effects(runs: pd.DataFrame) -> None:
    *factors, last = said(runs)
    assert [sentence.split(":")[0] for sentence in factors] == [
        "Framework",
        "Nodes",
        "Batches per exchange",
        "Batch size (samples)",
    ]
    data = effects.table(runs).data
    for name, sentence in zip(data["factor"].unique(), factors, strict=True):
        own = data[(data["factor"] == name) & data["ratio"].notna()]
        for row in (own.loc[own["ratio"].idxmin()], own.loc[own["ratio"].idxmax()]):
            ratio = tables.difference(tables.Estimate(row["ratio"], row["ratio_low"], row["ratio_high"]))
            assert f"{ratio} times as long" in sentence
        shown = int((own["p_holm"] < 0.05).sum())
        assert sentence.endswith(f"{shown} of {len(own)} comparisons show a difference.")
    tested = data[data["p_holm"].notna()]
    left = tested[tested["p_holm"] >= 0.05]
    excluded = 100 * (pd.concat([left["ratio_high"], 1 / left["ratio_low"]], axis=1).max(axis=1) - 1)
    assert last.startswith(f"{len(left)} of {len(tested)} comparisons show no difference")
    assert f"{excluded.min():.2g} % longer" in last and f"{excluded.max():.2g} % longer" in last
    assert "no proof that they are equal" in last


def test_a_report_opens_with_the_two_factors_that_change_most_and_what_is_not_told_apart(runs: pd.DataFrame) -> None:
    data = effects.table(runs).data
    every = answers.sentences(runs, data, anova.table(runs).data)
    first, more = answers.opening(every)
    farthest = (
        np.abs(np.log(data["ratio"])).groupby(data["factor"]).max().drop(index=["model"], errors="ignore").nlargest(2)
    )
    assert {one.subject.lower().split(" (")[0] for one in first[:2]} == {title(name) for name in farthest.index}
    assert len(first) == 3 and first[-1] == every[-1]
    assert sorted([*first, *more]) == sorted(every) and [one for one in every if one in first] == first
    assert answers.opening(every[-3:]) == (every[-3:], [])


def test_one_comparison_is_told_as_one(runs: pd.DataFrame) -> None:
    alone = (runs["nodes"] == 2) & (runs["batch_size"] == 16) & (runs["sync_every"] == 1)
    two = runs[runs["framework"].isin(["pytorch-ddp", "horovod-pytorch"]) & alone]
    row = effects.table(two).data.iloc[0]
    assert row["p_holm"] >= 0.05, "or this test says nothing"
    first, last = said(two)
    assert first.endswith("times as long (pytorch-ddp instead of horovod-pytorch); no difference is shown.")
    most = 100 * (max(row["ratio_high"], 1 / row["ratio_low"]) - 1)
    assert last.startswith("The one comparison shows no difference") and f"more than {most:.2g} % longer" in last
    slower = two.assign(epoch_time_s=two["epoch_time_s"] * (1 + (two["framework"] == "pytorch-ddp")))
    first, last = said(slower)
    assert first.endswith("this difference is shown.")
    assert last == "The one comparison shows a difference, at p < 0.05 after Holm's correction."


def test_what_an_equivalence_test_has_shown_is_called_equal_and_nothing_else(runs: pd.DataFrame) -> None:
    data = effects.table(runs, margin=0.2).data
    equal, left = (int((data["verdict"] == verdict).sum()) for verdict in (effects.EQUAL, effects.OPEN))
    last = str(answers.sentences(runs, data, anova.table(runs).data)[-1])
    said = f"{equal} of 114 comparisons are shown to be equal within the study's margin, and {left} others show no difference, "
    assert equal > 1 and left > 1 and last.startswith(said)
    assert f"This is no proof that those {left} are equal: their intervals exclude only that" in last
    assert last.count(". ") == 1, "two sentences"


def test_a_margin_within_which_nothing_is_equal_is_spoken_of(runs: pd.DataFrame) -> None:
    data = effects.table(runs, margin=0.001).data
    assert not (data["verdict"] == effects.EQUAL).any(), "or this test says nothing"
    last = str(answers.sentences(runs, data, anova.table(runs).data)[-1])
    assert "None is shown to be equal within the margin: their intervals exclude only" in last


def test_a_fraction_is_told_by_its_main_effects() -> None:
    runs = designed_campaign("screening", "local")[0]
    sentences = said(runs)
    table = anova.table(runs).data.set_index("term")
    for name, sentence in (("nodes", sentences[1]), ("batch size", sentences[4])):
        assert (
            f"{math.exp(2 * table.loc[name, 'q']):.2g}" in sentence and "on average over the other factors" in sentence
        )
    assert "2 of 5 comparisons show no difference" in sentences[-1]


@pytest.mark.parametrize(
    ("case", "first"),
    [
        ("no run", "No run of the study has succeeded, so its question has no answer yet."),
        ("one cell", "The study has one cell, so it compares nothing. A mean epoch takes 0."),
        ("one side failed", "Nodes: no comparison has runs on both sides, so its effect is not known."),
        ("two factors at once", "Framework: no two cells differ in this factor alone, so its effect is not known."),
    ],
)
def test_what_has_no_answer_says_so(runs: pd.DataFrame, case: str, first: str) -> None:
    own = runs[(runs["framework"] == "pytorch-ddp") & (runs["batch_size"] == 16) & (runs["sync_every"] == 1)]
    match case:
        case "no run":
            own = own.assign(status="failed")
        case "one cell":
            own = own[own["nodes"] == 1]
        case "one side failed":
            own = own.assign(status=own["status"].where(own["nodes"] == 1, "failed"))
        case "two factors at once":
            other = runs[(runs["framework"] == "horovod-pytorch") & (runs["nodes"] == 2) & (runs["batch_size"] == 32)]
            own = pd.concat([own[own["nodes"] == 1], other[other["sync_every"] == 1]])
    assert said(own)[0].startswith(first)


def test_without_replicates_nothing_is_tested(runs: pd.DataFrame) -> None:
    *factors, last = said(runs[runs["replicate"] == 1])
    assert last == "No comparison could be tested: that needs two or more runs of each cell."
    assert not any("show" in sentence or "[" in sentence for sentence in factors)
