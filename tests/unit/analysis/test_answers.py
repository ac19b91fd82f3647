"""Answers of a study have the numbers of its tables and call nothing equal."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import anova, answers, effects, tables
from analysis.measured import title
from support.synthetic import designed_campaign


def answer(runs: pd.DataFrame, margin: float | None = None) -> list[answers.Sentence]:
    return answers.answer_sentences(runs, effects.table(runs, margin).data, anova.table(runs).data)


def test_every_factor_has_a_sentence_with_its_extreme_effects(runs: pd.DataFrame) -> None:
    *factors, last = answer(runs)
    assert [sentence.subject for sentence in factors] == [
        "Framework",
        "Nodes",
        "Gradient accumulation steps",
        "Batch size (samples)",
    ]
    data = effects.table(runs).data
    for name, sentence in zip(data["factor"].unique(), factors, strict=True):
        own = data[(data["factor"] == name) & data["ratio"].notna()]
        rows = (own.loc[own["ratio"].idxmin()], own.loc[own["ratio"].idxmax()])
        for row, end in zip(rows, ("least", "greatest"), strict=True):
            contrast = sentence.text.facts[end]
            ratio = tables.Estimate(row["ratio"], row["ratio_low"], row["ratio_high"])
            assert (contrast.ratio, contrast.after) == (ratio, str(row["to"]))
            assert tables.difference(ratio) in sentence.text
        facts = sentence.text.facts
        assert (facts["shown"], facts["tested"]) == ((own["p_holm"] < 0.05).sum(), len(own))
    tested = data[data["p_holm"].notna()]
    left = tested[tested["p_holm"] >= 0.05]
    excluded = pd.concat([left["ratio_high"], 1 / left["ratio_low"]], axis=1).max(axis=1) - 1
    assert last.text.code == "not-told-apart" and last.text.facts == {
        "tested": len(tested),
        "equal": 0,
        "open": len(left),
        "excluded": [excluded.min(), excluded.max()],
        "none_equal": False,
    }


def test_report_opens_with_the_two_largest_effects(runs: pd.DataFrame) -> None:
    data = effects.table(runs).data
    every = answers.answer_sentences(runs, data, anova.table(runs).data)
    first, rest = answers.split_opening(every)
    farthest = (
        np.abs(np.log(data["ratio"]))
        .groupby(data["factor"])
        .max()
        .drop(index=["model"], errors="ignore")
        .nlargest(2)
    )
    assert {sentence.subject.lower().split(" (")[0] for sentence in first[:2]} == {
        title(name) for name in farthest.index
    }
    assert len(first) == 3 and first[-1] == every[-1]
    assert (
        sorted([*first, *rest]) == sorted(every)
        and [sentence for sentence in every if sentence in first] == first
    )
    assert answers.split_opening(every[-3:]) == (every[-3:], [])


def test_one_comparison_is_told_as_one(runs: pd.DataFrame) -> None:
    alone = (runs["nodes"] == 2) & (runs["batch_size"] == 16) & (runs["sync_every"] == 1)
    two = runs[runs["framework"].isin(["pytorch-ddp", "horovod-pytorch"]) & alone]
    row = effects.table(two).data.iloc[0]
    assert row["p_holm"] >= 0.05, "or this test says nothing"
    first, last = answer(two)
    contrast = first.text.facts["least"]
    assert contrast == first.text.facts["greatest"]
    assert (contrast.before, contrast.after) == ("horovod-pytorch", "pytorch-ddp")
    assert (first.text.facts["shown"], first.text.facts["tested"]) == (0, 1)
    largest = max(row["ratio_high"], 1 / row["ratio_low"]) - 1
    assert (last.text.facts["open"], last.text.facts["excluded"]) == (1, [largest, largest])
    slower = two.assign(epoch_time_s=two["epoch_time_s"] * (1 + (two["framework"] == "pytorch-ddp")))
    first, last = answer(slower)
    assert first.text.facts["shown"] == 1 and last.text.facts["open"] == last.text.facts["equal"] == 0


def test_only_an_equivalence_test_makes_cells_equal(runs: pd.DataFrame) -> None:
    data = effects.table(runs, margin=0.2).data
    equal, left = (int((data["verdict"] == verdict).sum()) for verdict in (effects.EQUAL, effects.OPEN))
    last = answers.answer_sentences(runs, data, anova.table(runs).data)[-1].text
    assert equal > 1 and left > 1
    facts = last.facts
    assert (facts["equal"], facts["open"], facts["tested"], facts["none_equal"]) == (equal, left, 114, False)
    assert last.count(". ") == 1, "two sentences"


def test_a_margin_within_which_nothing_is_equal_is_spoken_of(runs: pd.DataFrame) -> None:
    data = effects.table(runs, margin=0.001).data
    assert not (data["verdict"] == effects.EQUAL).any(), "or this test says nothing"
    last = answers.answer_sentences(runs, data, anova.table(runs).data)[-1].text
    assert last.facts["none_equal"] and last.facts["equal"] == 0 < last.facts["open"]


def test_a_fraction_is_told_by_its_main_effects() -> None:
    runs = designed_campaign("screening", "local")[0]
    sentences = answer(runs)
    table = anova.table(runs).data.set_index("term")
    for name, sentence in (("nodes", sentences[1]), ("batch size", sentences[4])):
        contrast = sentence.text.facts["least"]
        assert (
            contrast.ratio.value == math.exp(2 * table.loc[name, "q"])
            and contrast.context == answers.ON_AVERAGE
        )
    assert (sentences[-1].text.facts["open"], sentences[-1].text.facts["tested"]) == (2, 5)


@pytest.mark.parametrize(
    ("case", "subject", "code", "text"),
    [
        ("no run", "", "no-answer", "No run of the study has succeeded, so its question has no answer yet."),
        ("one cell", "", "one-cell", "The study has one cell, so it compares nothing. A mean epoch takes 0."),
        (
            "one side failed",
            "Nodes",
            "effect-not-known",
            "no comparison has runs on both sides, so its effect is not known.",
        ),
        (
            "two factors at once",
            "Framework",
            "effect-not-known",
            "no two cells differ in this factor alone, so its effect is not known.",
        ),
    ],
)
def test_what_has_no_answer_says_so(
    runs: pd.DataFrame, case: str, subject: str, code: str, text: str
) -> None:
    own = runs[(runs["framework"] == "pytorch-ddp") & (runs["batch_size"] == 16) & (runs["sync_every"] == 1)]
    match case:
        case "no run":
            own = own.assign(status="failed")
        case "one cell":
            own = own[own["nodes"] == 1]
        case "one side failed":
            own = own.assign(status=own["status"].where(own["nodes"] == 1, "failed"))
        case "two factors at once":
            horovod = runs[
                (runs["framework"] == "horovod-pytorch") & (runs["nodes"] == 2) & (runs["batch_size"] == 32)
            ]
            own = pd.concat([own[own["nodes"] == 1], horovod[horovod["sync_every"] == 1]])
    first = answer(own)[0]
    assert (first.subject, first.text.code) == (subject, code) and first.text.startswith(text)


def test_without_replicates_nothing_is_tested(runs: pd.DataFrame) -> None:
    *factors, last = answer(runs[runs["replicate"] == 1])
    assert last.text == answers.NOTHING_TESTED
    assert all(sentence.text.facts["tested"] == sentence.text.facts["shown"] == 0 for sentence in factors)
    assert not any("[" in sentence.text for sentence in factors), "no interval"


@pytest.mark.parametrize(
    ("left", "equal", "tested", "text"),
    [
        (
            1,
            0,
            1,
            "The one comparison shows no difference, at p < 0.05 after Holm's correction. Nor is it shown "
            "to be equal within the margin: the interval excludes only that the slower takes more than 25 % "
            "longer.",
        ),
        (
            2,
            3,
            9,
            "3 of 9 comparisons are shown to be equal within the study's margin, and 2 others show no "
            "difference, at p < 0.05 after Holm's correction. This is no proof that those 2 are equal: "
            "their intervals exclude only that the slower takes more than 25 % longer (in the closest "
            "comparison) to 25 % longer (in the widest).",
        ),
        (0, 0, 4, "All 4 comparisons show a difference, at p < 0.05 after Holm's correction."),
    ],
)
def test_wording_of_what_is_not_told_apart(left: int, equal: int, tested: int, text: str) -> None:
    contrast = answers.Contrast("nodes", "1", "2", "", tables.Estimate(1.0, 0.8, 1.25), 0.5)
    assert answers._undecided_text([contrast] * left, equal, tested, has_margin=True) == text
