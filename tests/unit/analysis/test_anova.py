"""Analysis of variance against Jain (1991), R's documented output, NIST StRD and statsmodels."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from analysis import anova, conditions
from analysis.cell_means import estimate_means
from analysis.intervals import ALL_THE_SAME
from common.notes import find_note
from declared.fraction import smallest_fraction
from support.published import JAIN_22R, JAIN_274, NPK, SIRSTV, TOOTH_GROWTH, WARPBREAKS


def analysed(data, factors, block=None):
    analysis = anova.analyse(data["y"].to_numpy(), data[factors], data[block].to_numpy() if block else None)
    return analysis, analysis.rows.set_index("term")


def test_jains_example_of_a_22r_design():
    # Chapter 18, the study of memory and cache: q = 21.5, 9.5, 5; SST 7032; 78.88, 15.40, 4.27, 1.45 %
    _, rows = analysed(JAIN_22R, ["A", "B"])
    assert rows["sum_sq"].to_dict() == pytest.approx(
        {"A": 5547, "B": 1083, "A × B": 300, "error": 102, "total": 7032}
    )
    assert (100 * rows["share"]).to_dict() == pytest.approx(
        {"A": 78.88, "B": 15.40, "A × B": 4.27, "error": 1.45, "total": 100}, abs=0.005
    )
    assert rows["q"].dropna().to_dict() == pytest.approx({"A": 21.5, "B": 9.5, "A × B": 5.0})
    # s_q = sqrt(102 / 8) / sqrt(12) = 1.03 (as there); t(8; 0.975) = 2.306
    assert rows.loc["A", "q_high"] - 21.5 == pytest.approx(2.306 * 1.0308, rel=1e-3)
    assert rows.loc["error", "df"] == 8


def test_jains_example_of_a_fraction():
    # Chapter 19, the 2^(7-4) design: q = 12.62, 4.37, 13.62, 5.37, 0.125, 5.87, 0.37; 37.26, 4.47, 43.40,
    # 6.75, 0, 8.06, 0.03 %
    fraction = smallest_fraction(list("ABCDEFG"), 3)
    factors = pd.DataFrame(list(fraction.signs())).sort_values(["C", "B", "A"]).reset_index(drop=True)
    analysis = anova.analyse(JAIN_274, factors)
    rows = analysis.rows.set_index("term")
    assert rows["q"].dropna().tolist() == pytest.approx([12.625, 4.375, 13.625, 5.375, 0.125, 5.875, 0.375])
    assert (100 * rows["share"][:7]).tolist() == pytest.approx(
        [37.26, 4.47, 43.40, 6.75, 0.0, 8.07, 0.03], abs=0.006
    )
    assert (analysis.aliased["A × B"], analysis.aliased["B × D"], analysis.aliased["F × G"]) == (
        "D",
        "A",
        "A",
    )
    assert len(analysis.aliased) == 21
    assert rows.loc["error", "df"] == 0
    assert rows[["F", "p", "q_low", "eta_sq_partial"]].isna().all(axis=None)
    assert analysis.problem == anova.NO_ERROR_DF


@pytest.mark.parametrize(
    ("data", "factors", "expected"),
    [
        # summary(aov(breaks ~ wool * tension, warpbreaks)), as in R's ?warpbreaks
        (
            WARPBREAKS,
            ["wool", "tension"],
            {"wool": (1, 451, 3.765, 0.058213), "tension": (2, 2034, 8.498, 0.000693),
             "wool × tension": (2, 1003, 4.189, 0.021044)},
        ),
        # summary(aov(len ~ supp * dose)), dose as a factor, as in R's ?ToothGrowth data
        (
            TOOTH_GROWTH,
            ["supp", "dose"],
            {"supp": (1, 205.4, 15.572, 0.000231), "dose": (2, 2426.4, 92.0, 0.0),
             "supp × dose": (2, 108.3, 4.107, 0.02186)},
        ),
    ],
)  # fmt: skip
def test_two_way_analyses_are_those_of_r(data, factors, expected):
    _, rows = analysed(data, factors)
    for term, (df, sum_sq, f, p) in expected.items():
        assert rows.loc[term, "df"] == df
        assert rows.loc[term, "sum_sq"] == pytest.approx(sum_sq, abs=0.5 if sum_sq > 400 else 0.06)
        assert rows.loc[term, "F"] == pytest.approx(f, abs=6e-4)
        assert rows.loc[term, "p"] == pytest.approx(p, abs=6e-7)


def test_a_blocked_design_is_that_of_r():
    # summary(aov(yield ~ block + N*P*K, npk)), as in R's ?npk; N x P x K is confounded with blocks and has no
    # row
    analysis, rows = analysed(NPK, ["N", "P", "K"], "block")
    expected = {
        "block": (5, 343.3, 4.447, 0.01594),
        "N": (1, 189.3, 12.259, 0.00437),
        "P": (1, 8.4, 0.544, 0.47490),
        "K": (1, 95.2, 6.166, 0.02880),
        "N × P": (1, 21.3, 1.378, 0.26317),
        "N × K": (1, 33.1, 2.146, 0.16865),
        "P × K": (1, 0.5, 0.031, 0.86275),
    }
    for term, (df, sum_sq, f, p) in expected.items():
        assert rows.loc[term, "df"] == df
        assert rows.loc[term, ["sum_sq", "F", "p"]].tolist() == pytest.approx([sum_sq, f, p], abs=0.05)
        assert rows.loc[term, "p"] == pytest.approx(p, abs=6e-6)
    assert (rows.loc["error", "df"], round(rows.loc["error", "sum_sq"], 1)) == (12, 185.3)
    assert "interactions of more factors" not in rows.index and not analysis.aliased


def test_nists_certified_analysis():
    # StRD SiRstv, certified: between 5.11462616000000E-02 (4), within 2.16636560000000E-01 (20), F
    # 1.18046237440255E+00
    _, rows = analysed(pd.DataFrame({"y": SIRSTV.ravel(), "i": np.repeat(range(5), 5)}), ["i"])
    assert rows.loc["i", "sum_sq"] == pytest.approx(5.11462616e-02, rel=1e-9)
    assert rows.loc["error", "sum_sq"] == pytest.approx(2.16636560e-01, rel=1e-9)
    assert rows.loc["i", "F"] == pytest.approx(1.18046237440255, rel=1e-9)


@pytest.fixture
def unbalanced():
    rng = np.random.default_rng(5)
    cells = list(itertools.product(range(2), range(3), range(3)))
    data = pd.DataFrame([cell for cell in cells for _ in range(rng.integers(2, 6))], columns=["a", "b", "c"])
    data["block"] = rng.integers(1, 4, len(data))
    data["y"] = data["a"] + 0.5 * data["b"] * data["c"] + rng.standard_normal(len(data))
    return data


def test_type_ii_sums_of_unbalanced_designs_equal_statsmodels(unbalanced):
    _, rows = analysed(unbalanced, ["a", "b", "c"], "block")
    table = anova_lm(ols("y ~ (C(a) + C(b) + C(c)) ** 2 + C(block)", unbalanced).fit(), typ=2)
    for term, name in {
        "a": "C(a)", "b": "C(b)", "c": "C(c)", "block": "C(block)", "a × b": "C(a):C(b)",
        "a × c": "C(a):C(c)", "b × c": "C(b):C(c)",
    }.items():  # fmt: skip
        assert rows.loc[term, ["df", "sum_sq"]].tolist() == pytest.approx(
            table.loc[name, ["df", "sum_sq"]].tolist()
        )
    full = ols("y ~ C(a) * C(b) * C(c) + C(block)", unbalanced).fit()
    assert rows.loc["error", ["df", "sum_sq"]].tolist() == pytest.approx([full.df_resid, full.ssr])
    higher = rows.loc["interactions of more factors"]
    assert higher[["df", "sum_sq"]].tolist() == pytest.approx([4, table.loc["Residual", "sum_sq"] - full.ssr])


def test_effect_sizes_of_a_worked_example():
    # Of Jain's A: 5547 / (5547 + 102); (5547 - 12.75) / (5547 + 11 x 12.75), with 12 observations (Olejnik &
    # Algina 2003)
    _, rows = analysed(JAIN_22R, ["A", "B"])
    assert rows.loc["A", "eta_sq_partial"] == pytest.approx(5547 / 5649)
    assert rows.loc["A", "omega_sq_partial"] == pytest.approx((5547 - 12.75) / (5547 + 11 * 12.75))


def test_missing_cells_leave_a_part_of_an_interaction_or_none(unbalanced):
    hole = unbalanced[~((unbalanced["a"] == 1) & (unbalanced["b"] == 2))]
    analysis, rows = analysed(hole, ["a", "b", "c"])
    assert analysis.partly == {"a × b": (1, 2)}
    assert rows.loc["a × b", "df"] == 1
    small = ols("y ~ C(a) + C(b) + C(c) + C(a):C(c) + C(b):C(c)", hole).fit()
    cells = hole.assign(ab=hole["a"].astype(str) + hole["b"].astype(str))
    large = ols("y ~ C(ab) + C(c) + C(a):C(c) + C(b):C(c)", cells).fit()
    assert rows.loc["a × b", "sum_sq"] == pytest.approx(small.ssr - large.ssr)
    assert rows["q"].isna().all()
    corner = unbalanced[(unbalanced["a"] == 0) | (unbalanced["b"] == 0)]
    analysis, rows = analysed(corner, ["a", "b"])
    assert analysis.aliased == {"a × b": ""}
    assert "a × b" not in rows.index


def test_factors_of_refused_interactions_have_no_effect():
    # cells (0, 0), (0, 1), (1, 0) at c = 0 and 1: y = a b would change a and b alike, but not c
    cells = [(0, 0), (0, 1), (1, 0)]
    data = pd.DataFrame(
        [(a, b, c, r) for a, b in cells for c in (0, 1) for r in range(3)], columns=["a", "b", "c", "r"]
    )
    data["y"] = data["c"] + 0.1 * np.random.default_rng(1).standard_normal(len(data))
    analysis, rows = analysed(data, ["a", "b", "c"])
    assert analysis.aliased == {"a × b": ""} and analysis.confounded == ["a", "b"]
    assert rows.loc[["a", "b"], "q"].isna().all()
    assert rows.loc["c", "q"] == pytest.approx(0.5, abs=0.1)


def test_a_table_names_its_assumptions_and_confounded_terms(read):
    runs = read(failures={})
    runs = runs[runs["framework"].isin(["pytorch-ddp", "horovod-pytorch"]) & (runs["sync_every"] == 1)]
    runs = runs[(runs["framework"] == "pytorch-ddp") | (runs["nodes"] == 1)]
    loud = (runs["batch_size"] == 16) & (runs["nodes"] == 1)
    runs.loc[loud, "epoch_time_s"] *= np.exp(0.4 * (runs["replicate"] - 2)[loud])
    table = anova.table(runs)
    spread = estimate_means(runs)
    assert find_note(table.notes, "unequal-spread").facts == {
        "times": spread.largest_spread_ratio,
        "p": spread.p,
    }
    assert find_note(table.notes, "terms-left-out").facts["confounded"] == ["framework", "nodes"]
    assert table.data.set_index("term").loc[["framework", "nodes"], "q"].isna().all()


def test_confounded_factor_is_refused_by_name(unbalanced):
    analysis, rows = analysed(unbalanced.assign(d=unbalanced["a"]), ["a", "b", "d"])
    assert analysis.aliased["d"] == "a"
    assert rows.loc["a", "df"] == 1 and "d" not in rows.index


def test_interactions_of_too_many_levels_are_left_out_by_name():
    rng = np.random.default_rng(1)
    data = pd.DataFrame(
        {"a": rng.integers(0, 30, 2000), "b": rng.integers(0, 30, 2000), "y": rng.standard_normal(2000)}
    )
    analysis, rows = analysed(data, ["a", "b"])
    assert analysis.too_many == ["a × b"]
    assert rows.loc["interactions of more factors", "df"] > 700


def test_the_strongest_factors_have_the_largest_shares(runs):
    table = anova.table(runs)
    rows = table.data.set_index("term")
    assert list(rows.index[:4]) == ["framework", "batch size", "nodes", "gradient accumulation steps"]
    main = rows.loc[["framework", "batch size", "nodes", "gradient accumulation steps", "block"], "sum_sq"]
    assert main.idxmax() == "framework" and rows.loc["framework", "p"] < 0.001
    assert rows.loc["block", "p"] > 0.001
    assert find_note(table.notes, "estimated-in-part").facts["degrees"]["framework × nodes"] == (3, 5)
    assert rows.loc["total", "df"] == 109


def test_the_log_scale_makes_q_a_ratio(read):
    runs = read(noise=0.001, failures={})
    two = runs[(runs["framework"] == "pytorch-ddp") & (runs["sync_every"] == 1) & (runs["batch_size"] != 32)]
    two = two.assign(
        epoch_time_s=np.where(two["nodes"] == 2, 2.0, 3.0) * np.exp(0.001 * np.arange(len(two)) % 0.004)
    )
    row = anova.table(two).data.set_index("term").loc["nodes"]
    assert math.exp(2 * row["q"]) == pytest.approx(2 / 3, rel=0.01)


@pytest.mark.parametrize("case", ["one cell", "one replicate", "no noise", "all equal", "no run"])
def test_little_gives_a_table_that_says_so(case, read):
    runs = read(
        replicates=1 if case == "one replicate" else 3, noise=0.0 if case == "no noise" else 0.02, failures={}
    )
    match case:
        case "one cell":
            runs = runs[runs["cell"] == runs["cell"].iloc[0]]
        case "all equal":
            runs = runs.assign(epoch_time_s=0.5)
        case "no run":
            runs = runs.assign(status="failed")
    table = anova.table(runs)
    if case == "no run":
        assert table.notes == [conditions.NO_SUCCESS]
    else:
        problem = find_note(table.notes, "no-tests").facts["problem"]
        expected = {"no noise": anova.RUNS_THE_SAME, "all equal": ALL_THE_SAME}
        assert problem == expected.get(case, anova.NO_ERROR_DF)
        assert (find_note(table.notes, "runs-analysed").facts["factors"] == []) == (case == "one cell")
        single = find_note(anova.table(runs.head(1)).notes, "runs-analysed").facts
        assert (single["runs"], single["cells"], single["factors"]) == (1, 1, [])
    assert not np.isinf(table.data.select_dtypes("number").to_numpy(float)).any()


@pytest.mark.parametrize("seconds", [0.5, 0.3, 1.0, 700.0])
def test_times_that_differ_by_rounding_alone_have_no_shares(read, seconds):
    runs = read(failures={})
    last_digits = np.where(np.arange(len(runs)) % 3, seconds, np.nextafter(seconds, 2 * seconds))
    rows = anova.table(runs.assign(epoch_time_s=last_digits)).data
    assert (rows["sum_sq"] == 0).all()
    assert rows[["F", "p", "share", "eta_sq_partial", "omega_sq_partial"]].isna().all(axis=None)
