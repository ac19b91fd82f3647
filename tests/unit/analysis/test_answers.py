"""Answers of a study have the numbers of its tables and call nothing equal."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import anova, answers, decomposition, effects, tables
from analysis.cell_means import estimate_means
from analysis.contrasts import ON_AVERAGE, Contrast, contrasts_by_factor, rank_levels
from analysis.evidence import Evidence
from analysis.records import read_runs, read_timing_runs
from common.files import CHECKOUT
from common.notes import Note, codes, find_note
from common.tables import read_table
from support.synthetic import designed_campaign, write_frames


def answer(runs: pd.DataFrame, *factors: str, margin: float | None = None) -> answers.Answer:
    table, variation = effects.table(runs, margin).data, anova.table(runs).data
    evidence = Evidence(runs, {"effects": table, "anova": variation})
    return answers.answer_sentences(evidence, answers.Question(factors, margin))


def estimate(row: pd.Series) -> tables.Estimate:
    return tables.Estimate(*row[["ratio", "ratio_low_simultaneous", "ratio_high_simultaneous"]])


def best_note(answered: answers.Answer) -> Note:
    return find_note(answered.main, "best-level")


def test_saved_all_reduces_are_those_of_the_decomposition() -> None:
    folder = CHECKOUT / "docs" / "campaigns" / "quickstart"
    runs = read_timing_runs(folder / "runs.csv")
    parts = decomposition.table(runs, read_table(folder / "network.csv.gz", "network")).data
    values = {"effects": effects.table(runs).data, "anova": anova.table(runs).data}
    question = answers.Question(("framework", "sync_every"))
    main = answers.answer_sentences(Evidence(runs, {**values, "decomposition": parts}), question).main
    saved, split = find_note(main, "saved-all-reduces").facts, parts.dropna(subset=["network_s"])
    for column in ("network_s", "difference_s"):
        assert saved[column] == [-split[column].max(), -split[column].min()]
    assert codes(main).index("saved-all-reduces") == codes(main).index("recovered") + 1
    unknown = answers.answer_sentences(Evidence(runs, values), question).main
    assert "saved-all-reduces" not in codes(unknown)


def test_best_level_is_of_the_first_factor_in_question(runs: pd.DataFrame) -> None:
    for factor in ("sync_every", "nodes"):
        assert best_note(answer(runs, factor)).facts["factor"] == factor
    assert best_note(answer(runs, "model")).facts["factor"] == "framework", "it does not vary"


def test_largest_difference_is_named_before_the_leads(runs: pd.DataFrame) -> None:
    slower = runs.assign(epoch_time_s=runs["epoch_time_s"] * (1 + 2 * (runs["framework"] == "pytorch-ddp")))
    main = answer(slower, "framework").main
    note = find_note(main, "differences")
    data = effects.table(slower).data
    differing = data[(data["factor"] == "framework") & (data["p_holm"] < 0.05)]
    assert note.facts["significant"] == len(differing) > 1
    largest = np.exp(np.abs(np.log(differing["ratio"])).max())
    assert note.facts["largest"].ratio.value == pytest.approx(largest)
    assert codes(main).index("differences") < codes(main).index("best-level")


def test_best_level_and_its_lead_compare_the_same_runs(runs: pd.DataFrame) -> None:
    """A repeated run is outside its block: ratios leave it out, so its cell's mean must not decide the rank."""
    repeated = read_timing_runs(CHECKOUT / "docs" / "campaigns" / "quickstart-earlier" / "runs.csv")
    assert (repeated["attempt"] > 1).any(), "or this test says nothing"
    contrasts = contrasts_by_factor(repeated, effects.table(repeated).data, anova.table(repeated).data)
    for ranking in rank_levels(repeated, "framework", contrasts["framework"]):
        assert ranking.lead is not None and ranking.lead.ratio.value < 1
    assert "not all runs" in answer(repeated, "framework").reading
    assert "not all runs" not in answer(runs, "framework").reading


def test_fastest_level_is_counted_over_settings(runs: pd.DataFrame) -> None:
    means = estimate_means(runs).cell_statistics["mean"].rename("mean").reset_index()
    levels = runs.drop_duplicates("cell")[["cell", "framework", "nodes", "batch_size", "sync_every"]]
    measured = means.merge(levels)
    other_levels = measured.groupby(["nodes", "batch_size", "sync_every"])
    compared = measured[other_levels["framework"].transform("size") > 1]
    fastest = compared.loc[
        compared.groupby(["nodes", "batch_size", "sync_every"])["mean"].idxmin(), "framework"
    ]
    facts = best_note(answer(runs, "framework")).facts
    assert facts["wins"] == fastest.value_counts().to_dict() and facts["settings"] == len(fastest)
    assert set(facts["levels"]) == set(fastest.mode())


def test_lead_is_over_the_next_framework_of_the_table(runs: pd.DataFrame) -> None:
    note = best_note(answer(runs, "framework"))
    data, lead = effects.table(runs).data, note.facts["lead"]
    rows = data[(data["from_cell"].isin(lead.cells)) & data["to_cell"].isin(lead.cells)]
    assert len(rows) == 1 and lead.p == rows["p_holm"].iloc[0]
    ratio = estimate(rows.iloc[0])
    forward = lead.cells == (rows["from_cell"].iloc[0], rows["to_cell"].iloc[0])
    assert lead.ratio.value == pytest.approx(ratio.value if forward else 1 / ratio.value)
    assert lead.ratio.value < 1
    assert tables.ratio(lead.ratio) in note and lead.after in note and lead.before in note
    means = estimate_means(runs).cell_statistics["mean"]
    rankings = rank_levels(
        runs, "framework", contrasts_by_factor(runs, data, anova.table(runs).data)["framework"]
    )
    for ranking in rankings:
        assert means[list(ranking.cells)].is_monotonic_increasing
        assert ranking.lead is not None and ranking.lead.cells == (ranking.cells[1], ranking.cells[0])


def test_levels_not_compared_with_the_next_are_with_the_first(tmp_path: Path) -> None:
    runs = read_runs(write_frames(tmp_path, *designed_campaign())[0])
    contrasts = contrasts_by_factor(runs, effects.table(runs).data, anova.table(runs).data)
    rankings = rank_levels(runs, "nodes", contrasts["nodes"])
    assert {ranking.levels[0] for ranking in rankings} > {1}, "or this test says nothing"
    for ranking in rankings:
        rival = ranking.levels[1] if ranking.levels[0] == 1 else 1
        assert ranking.lead is not None
        assert (ranking.lead.before, ranking.lead.after) == (rival, ranking.levels[0])


def test_strategies_are_ranked_whatever_microbatches_they_need() -> None:
    runs = read_timing_runs(CHECKOUT / "docs" / "campaigns" / "strategies-virtual" / "runs.csv")
    rankings = rank_levels(runs, "parallelism", [])
    assert any({"data", "pipeline"} <= set(ranking.levels) for ranking in rankings)
    assert all(ranking.lead is None for ranking in rankings), "without contrasts"


def test_difference_is_claimed_only_if_the_interval_excludes_1(runs: pd.DataFrame) -> None:
    two = runs[runs["framework"].isin(["pytorch-ddp", "horovod-pytorch"])]
    slow = two["framework"] == "horovod-pytorch"
    for factor, is_significant in ((1.0, False), (3.0, True)):
        noise = np.exp(0.05 * np.random.default_rng(1).standard_normal(len(two)))
        changed = two.assign(epoch_time_s=noise * np.where(slow, factor, 1.0))
        note = best_note(answer(changed, "framework"))
        lead = note.facts["lead"]
        assert (note.facts["significant"] > 0) == is_significant == (lead.ratio.high < 1)


def test_effect_is_of_the_strongest_other_factor(runs: pd.DataFrame) -> None:
    data = effects.table(runs).data
    second = find_note(answer(runs, "framework").main, "effect")
    significant = data[(data["p_holm"] < 0.05) & (data["factor"] != "framework")]
    strongest = np.abs(np.log(significant["ratio"])).groupby(significant["factor"]).max().idxmax()
    own = data[(data["factor"] == strongest) & data["ratio"].notna()]
    assert (second.code, second.facts["factor"]) == ("effect", strongest)
    least, greatest = own.loc[own["ratio"].idxmin()], own.loc[own["ratio"].idxmax()]
    assert (second.facts["least"].ratio, second.facts["greatest"].ratio) == (
        estimate(least),
        estimate(greatest),
    )
    assert (second.facts["significant"], second.facts["tested"]) == ((own["p_holm"] < 0.05).sum(), len(own))


def test_every_factor_has_a_sentence(runs: pd.DataFrame) -> None:
    main, further, _ = answer(runs, "framework")
    assert codes(main) == ["means", "differences", "best-level", "effect", "open-comparisons"]
    described = {note.facts["factor"] for note in (*main, *further) if "factor" in note.facts}
    assert described == {"framework", "nodes", "sync_every", "batch_size"}


def test_last_sentence_counts_open_comparisons(runs: pd.DataFrame) -> None:
    data = effects.table(runs).data
    tested = data[data["p_holm"].notna()]
    left = tested[tested["p_holm"] >= 0.05]
    slowdowns = (
        pd.concat([left["ratio_high_simultaneous"], 1 / left["ratio_low_simultaneous"]], axis=1).max(axis=1)
        - 1
    )
    assert answer(runs).main[-1].facts == {
        "tested": len(tested),
        "equal": 0,
        "open": len(left),
        "slowdowns": [slowdowns.min(), slowdowns.max()],
    }


def test_one_comparison_is_told_as_one(runs: pd.DataFrame) -> None:
    alone = (runs["nodes"] == 2) & (runs["batch_size"] == 16) & (runs["sync_every"] == 1)
    two = runs[runs["framework"].isin(["pytorch-ddp", "horovod-pytorch"]) & alone]
    row = effects.table(two).data.iloc[0]
    assert row["p_holm"] >= 0.05, "or this test says nothing"
    (_, first, last), further, _ = answer(two)
    assert not further and first.facts["settings"] == 1 and first.facts["significant"] == 0
    largest = max(row["ratio_high_simultaneous"], 1 / row["ratio_low_simultaneous"]) - 1
    assert (last.facts["open"], last.facts["slowdowns"]) == (1, [largest, largest])
    slower = two.assign(epoch_time_s=two["epoch_time_s"] * (1 + (two["framework"] == "pytorch-ddp")))
    (_, first, last), *_ = answer(slower)
    assert first.facts["significant"] == 1 and first.facts["levels"] == ["horovod-pytorch"]
    assert last.facts["open"] == last.facts["equal"] == 0


def test_only_an_equivalence_test_makes_cells_equal(runs: pd.DataFrame) -> None:
    data = effects.table(runs, margin=0.2).data
    equal, left = (int((data["verdict"] == verdict).sum()) for verdict in (effects.EQUAL, effects.OPEN))
    facts = answer(runs, margin=0.2).main[-1].facts
    assert equal > 1 and left > 1
    assert (facts["equal"], facts["open"], facts["tested"]) == (equal, left, 114)


def test_a_fraction_is_told_by_its_main_effects() -> None:
    runs = designed_campaign("screening", "local")[0]
    main, further, _ = answer(runs, "nodes")
    table = anova.table(runs).data.set_index("term")
    effect_of = {
        note.facts["factor"]: note.facts["least"] for note in (*main[:-1], *further) if "least" in note.facts
    }
    assert main[1].facts["factor"] == "nodes"
    for name, factor in (("nodes", "nodes"), ("batch size", "batch_size")):
        assert effect_of[factor].ratio.value == pytest.approx(math.exp(2 * table.loc[name, "q"]))
        assert effect_of[factor].context == ON_AVERAGE
        assert effect_of[factor].ratio.high > math.exp(2 * table.loc[name, "q_high"]), "simultaneous"
    for contrast in effect_of.values():
        excluded = contrast.ratio.low > 1 or contrast.ratio.high < 1
        assert excluded == contrast.is_significant
    assert (main[-1].facts["open"], main[-1].facts["tested"]) == (2, 5)


@pytest.mark.parametrize(
    ("case", "code", "text"),
    [
        ("no run", "no-answer", "No run of the study has succeeded, so its question has no answer yet."),
        ("one cell", "one-cell", "The study has one cell, so it compares nothing. Its mean epoch time is 0."),
        ("one side failed", "effect-not-known", "The effect of nodes is not known"),
        ("two factors at once", "effect-not-known", "The effect of framework is not known"),
    ],
)
def test_what_has_no_answer_says_so(runs: pd.DataFrame, case: str, code: str, text: str) -> None:
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
    assert find_note(answer(own).main, code).startswith(text)


def test_unknown_effects_share_a_sentence(runs: pd.DataFrame) -> None:
    own = runs[(runs["sync_every"] == 1) & (runs["batch_size"] == 16)]
    apart = (own["framework"] == "pytorch-ddp") & (own["nodes"] == 1)
    contrary = (own["framework"] == "horovod-pytorch") & (own["nodes"] == 2)
    mixed = pd.concat([own[apart], own[contrary].assign(batch_size=32)])
    first, *further = [note for note in answer(mixed).further if note.code == "effect-not-known"]
    assert not further and set(first.facts["factors"]) == {"nodes", "batch_size"}


def test_levels_that_ran_out_of_memory_are_named(runs: pd.DataFrame) -> None:
    """A level of the asked factor, and the frameworks if that is another factor."""
    rows = runs[["framework", "nodes", "batch_size"]]
    is_out = (rows["framework"] == "pytorch-ddp") & (rows["batch_size"] == rows["batch_size"].max())
    ran_out = runs.assign(
        status=runs["status"].mask(is_out, "oom"), epoch_time_s=runs["epoch_time_s"].mask(is_out)
    )
    n, n_cells = (
        ran_out.loc[rows_of, "cell"].nunique() for rows_of in (is_out, rows["framework"] == "pytorch-ddp")
    )
    for factors, factor in ((("framework",), "framework"), (("model", "batch_size"), "batch_size")):
        (note,) = [note for note in answer(ran_out, *factors).main if note.code == "out-of-memory"]
        assert note.facts["factor"] == factor and len(note.facts["cells"]) == n
        if factor == "framework":
            assert note.facts["levels"] == {"pytorch-ddp": (n, n_cells)}
    assert "out-of-memory" not in codes(answer(runs, "framework").main)
    without_result = runs.assign(status="oom", epoch_time_s=np.nan)
    main = answers.answer_sentences(Evidence(without_result, {}), answers.Question(["framework"])).main
    assert len(find_note(main, "out-of-memory").facts["cells"]) == runs["cell"].nunique()


def test_without_replicates_nothing_is_tested(runs: pd.DataFrame) -> None:
    main, further, _ = answer(runs[runs["replicate"] == 1])
    *notes, last = main
    assert last == answers.NOTHING_TESTED
    assert all(note.facts.get("significant", 0) == 0 for note in (*notes, *further))
    assert not any("[" in note for note in (*notes, *further)), "no interval"


def test_factor_that_defines_the_work_is_never_the_strongest() -> None:
    slower, undecided = tables.Estimate(1.9, 1.2, 3.0), tables.Estimate(0.99, 0.89, 1.09)
    by_factor = {
        "model": [Contrast("model", "a", "b", "", slower, 0.001)],
        "nodes": [Contrast("nodes", 1, 2, "", undecided, 0.9)],
    }
    assert answers._strongest_factor(by_factor) == "nodes"
    assert answers._strongest_factor(by_factor, exclude=["nodes"]) is None


def test_effect_is_split_by_the_factor_that_decides_it(runs: pd.DataFrame) -> None:
    """Accumulation shortens epochs on two nodes only, as it does where nodes have to communicate."""
    own = runs[runs["framework"].isin(["pytorch-ddp", "horovod-pytorch"])]
    noise = np.exp(0.01 * np.random.default_rng(1).standard_normal(len(own)))
    is_faster = (own["nodes"] == 2) & (own["sync_every"] > 1)
    split, level = (own.assign(epoch_time_s=noise * times) for times in (np.where(is_faster, 0.5, 1.0), 1.0))
    effect = find_note(answer(split, "framework", "sync_every").main, "effect")
    assert effect.facts["moderator"] == "nodes"
    assert 0 < effect.facts["significant"] < effect.facts["tested"]
    assert "2 nodes" in effect.partition(". ")[0] and "1 node" in effect.partition(". ")[2]
    effect = find_note(answer(level, "framework", "sync_every").main, "effect")
    assert effect.facts["moderator"] is None and not effect.facts["significant"]


def test_effect_over_all_cells_is_never_denied(runs: pd.DataFrame) -> None:
    data, variation = effects.table(runs).data, anova.table(runs).data
    contrasts = [
        contrast
        for contrast in contrasts_by_factor(runs, data, variation)["framework"]
        if not contrast.is_significant
    ]
    for p, is_stated in ((0.001, True), (0.5, False)):
        changed = variation.assign(p=variation["p"].mask(variation["term"].str.contains("framework"), p))
        facts = answers._effect_note("framework", contrasts, changed).facts
        share = variation.set_index("term").at["framework", "share"]
        assert facts["overall"] == ({"p": p, "share": share} if is_stated else {})


def test_means_have_a_range_for_each_number_of_nodes(runs: pd.DataFrame) -> None:
    note = find_note(answer(runs, "framework").main, "means")
    means = estimate_means(runs).cell_statistics["mean"]
    ranges = note.facts["ranges"]
    assert 1 < len(ranges) <= answers.MAX_RANGES and "framework" not in note.facts["factors"]
    assert min(low for *_, low, _ in ranges) == pytest.approx(means.min())
    assert max(high for *_, high in ranges) == pytest.approx(means.max())
    assert sum(n for _, n, *_ in ranges) == len(means)


def test_accuracy_is_stated_with_and_without_accumulation(runs: pd.DataFrame) -> None:
    accumulates = runs["sync_every"] > 1
    changed = runs.assign(validation_accuracy=np.where(accumulates, 0.9, 0.8))
    note = find_note(answer(changed, "framework").further, "accuracy-of-accumulation")
    assert note.facts["overlapping"] == 0 < note.facts["pairs"]
    assert {round(low) for _, low, _ in note.facts["ranges"]} == {80, 90}
    compared = runs[accumulates].drop(columns=["sync_every"]).nunique()
    assert all(compared[name] == 1 for name in note.facts["shared"]), "levels of the cells that are compared"
    unchanged = answer(runs.assign(validation_accuracy=0.8), "framework")
    assert "accuracy-of-accumulation" not in codes(unchanged.further)


def test_warm_up_is_named_only_if_it_stands_out(runs: pd.DataFrame) -> None:
    cells = runs.drop_duplicates("cell")[["cell", "framework"]].reset_index(drop=True)
    is_slow = cells["framework"] == "pytorch-ddp"
    for slow_s, other_s, is_named in ((3.0, 1.0, True), (1.5, 1.0, False), (3.0, 0.2, True)):
        useful = cells.assign(node_s=10.0, warm_up_s=np.where(is_slow, slow_s, other_s))
        note = answers._warm_up_note(Evidence(runs, {"useful_time": useful}))
        assert (note and note.facts["framework"]) == ("pytorch-ddp" if is_named else None)


def test_significant_ratios_are_counted_by_direction() -> None:
    def contrast(ratio: float, p: float) -> Contrast:
        return Contrast("nodes", 1, 2, "", tables.Estimate(ratio, 0.9 * ratio, 1.1 * ratio), p)

    faster, slower, undecided = contrast(0.5, 0.01), contrast(2.0, 0.01), contrast(1.0, 0.9)
    assert answers._count_by_direction([faster, faster]) == "all 2 significantly below 1"
    assert answers._count_by_direction([slower, undecided]) == "1 of 2 significantly above 1"
    counted = answers._count_by_direction([faster, slower, undecided])
    assert counted == "1 of 3 significantly below 1 and 1 above"


def test_significant_interval_that_ends_at_1_is_given_with_p() -> None:
    ratio = tables.Estimate(1.13, float(np.nextafter(1, 2)), 1.31)
    barely, clearly = (Contrast("nodes", 1, 2, "", ratio, p) for p in (0.0496, 0.01))
    assert answers._ratio_text(barely) == "1.13 [1.00, 1.31] (p = 0.0496)"
    assert answers._ratio_text(Contrast("nodes", 1, 2, "", ratio, 0.3)) == "1.13 [1.00, 1.31]"
    assert answers._count_by_direction([barely]) == "significantly above 1, but barely"
    assert answers._count_by_direction([barely, clearly]) == "all 2 significantly above 1"
