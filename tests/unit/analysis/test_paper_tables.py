"""Tables as they are written and read, and the programs that write them."""

import re

import numpy as np
import pandas as pd
import pytest

from analysis import study, tables
from analysis.intervals import Estimate
from common.errors import InputError, exit_status
from declared.products.tables import PROGRAMS
from report.content import why_empty
from support.synthetic import campaign, write_frames

TABLES = sorted(table.name for table in PROGRAMS["analysis.study"].tables if not table.csv_only)
WRAPPED = r">\{\\raggedright\\arraybackslash\}p\{[\d.]+em\}"
SPECIAL = r"50 % of a_b & {c} ~ #1 \ $x^2$ <1 × ²"


def balanced(text):
    """Assert that braces and environments close and rows of a tabular have as many cells as columns."""
    if r"\begin" not in text:  # without rows there is no table
        assert text.startswith("% ") and text.count("\n") == 1
        return
    depth = 0
    for character in re.sub(r"\\[{}\\]", "", text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert open_environments == []
    columns = len(re.search(r"@\{\}([lrp]+)@\{\}", re.sub(WRAPPED, "p", text)).group(1))
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert rows
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.62, "0.620"),
        (0.9996, "1.00"),
        (1234.5, "1234"),
        (-0.004321, "−0.00432"),
        (12.34, "12.3"),
        (7.1e-6, "7.10e−06"),
        (0, "0"),
        (float("nan"), "–"),
        (None, "–"),
    ],
)
def test_numbers_are_rounded_for_people(value, text):
    assert tables.number(value) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.62041, 0.60911, 0.63142, "0.620 [0.609, 0.631]"),
        (0.513, 0.267, 0.987, "0.51 [0.27, 0.99]"),
        (0.194121, 0.194081, 0.194162, "0.19412 [0.19408, 0.19416]"),
        (0.194121, 0.194091, 0.194151, "0.194121 [0.194091, 0.194151]"),
        (36_012.4, 36_001.6, 36_023.2, "36012 [36002, 36023]"),
        (36_012.41, 36_012.01, 36_012.81, "36012.4 [36012.0, 36012.8]"),
        (1.0, 0.02, 50.0, "1.0 [0.0, 50.0]"),
        (1_536_215.0, 1_531_002.0, 1_541_430.0, "1.536e+06 [1.531e+06, 1.541e+06]"),
        (4.41e-6, 4.4e-6, 4.42e-6, "4.410e−06 [4.400e−06, 4.420e−06]"),
        (6.3e-5, -1.4e-4, 2.6e-4, "0.00006 [−0.00014, 0.00026]"),
        (6.3e-6, -1.4e-5, 2.6e-5, "0.000006 [−0.000014, 0.000026]"),
        (2.1e6, 4e5, 3.9e6, "2.1e+06 [0.4e+06, 3.9e+06]"),
        (10.7, 10.69, 10.71, "10.700 [10.690, 10.710]"),
        (1 / 3, 1 / 3 - 1e-12, 1 / 3 + 1e-12, "0.33333333 [0.33333333, 0.33333333]"),
        (-0.000817, -0.012359, 0.010724, "−0.001 [−0.012, 0.011]"),
        (-2.5234, -2.6412, -2.4103, "−2.52 [−2.64, −2.41]"),
        (-0.0001, -0.5, 0.5, "0.00 [−0.50, 0.50]"),
        (0.0, -0.5, 0.5, "0.00 [−0.50, 0.50]"),
        (120.0, -900.0, 1140.0, "120 [−900, 1140]"),
        (float("inf"), 5.0, float("inf"), "inf [5.00, inf]"),
        (1.5, float("nan"), float("nan"), "1.50"),
        (1.5, 1.5, 1.5, "1.50 [1.50, 1.50]"),
    ],
)
def test_digits_follow_the_width_of_the_interval(value, low, high, text):
    assert tables.interval(Estimate(value, low, high)) == text


def test_means_are_as_precise_as_their_ratio():
    rows = pd.DataFrame({"from_s": [0.194121, 2.0], "ratio": [1.0004, 1.5], "ratio_low": [1.0002, np.nan]})
    rows["ratio_high"] = [1.0006, np.nan]
    assert tables.mean_texts(rows, "from_s", "ratio") == ["0.19412", "2.00"]
    assert tables.mean_texts(rows, "from_s", "ratio", 1e3) == ["194.12", "2000"]
    wide = rows.assign(ratio_low=0.5, ratio_high=2.0)
    assert tables.mean_texts(wide, "from_s", "ratio") == ["0.194", "2.00"], "three digits at least"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0312, "3.1"), (0.00031, "0.031"), (-0.0004, "−0.040"), (0.0, "0.0"), (-1e-17, "0.0"), (0.34, "34.0")],
)
def test_small_changes_keep_two_digits(share, text):
    assert tables.change(share) == text


def test_changes_of_a_column_have_equal_decimals():
    assert tables.change_decimals([0.0094, 0.03, np.nan]) == tables.change_decimals([np.nan]) == 1
    assert tables.change_decimals(pd.Series([0.0003, -0.0001])) == 3
    assert [tables.change(share, 3) for share in (0.0003, -0.0001, np.nan)] == ["0.030", "−0.010", "–"]


def test_p_values_do_not_claim_too_much():
    assert [tables.p_value(p) for p in (1e-30, 0.04567, float("nan"))] == ["<0.001", "0.046", "–"]


def test_latex_special_characters_are_written_out():
    text = tables.latex_text(SPECIAL)
    assert (
        re.search(
            r"(?<!\\)[%&#_~^]", text.replace(r"\textasciitilde{}", "").replace(r"\textasciicircum{}", "")
        )
        is None
    )
    assert tables.latex_text("a_b & 5 %") == r"a\_b \& 5 \%"


@pytest.mark.parametrize("rows", [3, 100])
def test_tables_of_any_length_are_valid_latex_and_markdown(rows):
    display = pd.DataFrame({"batch size": ["1"] * rows, "what|is": [SPECIAL] * rows})
    table = tables.Table("Title & more", display, display, notes=["100 %"], left_aligned=["what|is"])
    text = tables.latex(table, "tab:x")
    balanced(text)
    assert ("longtable" in text) == (rows > tables.PAGE_ROWS)
    lines = [line for line in tables.markdown(table).splitlines() if line.startswith("|")]
    assert len(lines) == rows + 2
    assert len({len(line) for line in lines}) == 1
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}


@pytest.mark.parametrize("width", [40, 200])
def test_a_wide_table_lies_across_the_page(width):
    display = pd.DataFrame({"what": ["x" * width] * 4})
    text = tables.latex(tables.Table("Title", display, display, notes=["100 %"], rules_above=[1, 3]), "tab:x")
    balanced(text)
    assert (r"\begin{landscape}" in text) == (width == 200)
    lines = text.splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("xx")]
    assert [lines[number - 1] == r"\midrule" for number in rows[1:]] == [True, False, True]


def test_long_words_are_wrapped_so_that_the_table_stays_upright():
    display = pd.DataFrame({"run": ["a.b" * 20], "reason": ["it failed " * 20], "n": ["5"]})
    text = tables.latex(tables.Table("Title", display, display, left_aligned=["run", "reason"]), "tab:x")
    balanced(text)
    assert "landscape" not in text and len(re.findall(WRAPPED, text)) == 2
    assert r"a.\allowbreak{}ba.\allowbreak{}b" in text, "a long name has no blanks to be broken at"
    assert "array" in text.splitlines()[0]


def test_rows_that_are_wrapped_make_a_table_longer_than_a_page():
    display = pd.DataFrame({"reason": ["it failed " * 40] * 20})
    assert "longtable" in tables.latex(
        tables.Table("Title", display, display, left_aligned=["reason"]), "tab:x"
    )
    assert "longtable" not in tables.latex(
        tables.Table("Title", display, display.assign(reason="it failed")), "tab:x"
    )


def test_long_table_repeats_its_header_but_not_its_caption():
    display = pd.DataFrame({"what": ["x"] * 100})
    text = tables.latex(tables.Table("Title", display, display), "tab:x")
    assert text.count(r"\caption") == text.count(r"\label") == 1
    first, rest = text.split(r"\endfirsthead")
    assert r"\caption" in first and "what" in rest.split(r"\endhead")[0]


def test_bracket_is_no_option_of_the_previous_row():
    display = pd.DataFrame({"what": ["[1, 2]", "*", "x"]})
    lines = tables.latex(tables.Table("Title", display, display), "tab:x").splitlines()
    assert "{}[1, 2] " + 2 * chr(92) in lines and "{}* " + 2 * chr(92) in lines


def write_tables(folder, runs_csv, omit=()):
    """Write all tables of runs into a folder but some."""
    epochs_csv = runs_csv.with_name("epochs.csv")
    study.main(runs=runs_csv, epochs=epochs_csv, target_accuracy=0.5, out=folder, omit=omit)
    return folder


@pytest.fixture(scope="module")
def of_campaign(csv, tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"), csv[0])


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_csv_markdown_and_balanced_latex(name, of_campaign):
    # There is no reference, meter, price, estimate of memory or record of settings, one strategy, and fewer
    # than three device counts in each series.
    empty = name in ("adjusted", "cost", "drift", "energy", "memory", "scaling", "strategies", "settings")
    assert (len(pd.read_csv(of_campaign / f"{name}.csv")) == 0) == empty
    assert (of_campaign / f"{name}.md").read_text().startswith("**")
    text = (of_campaign / f"{name}.tex").read_text()
    balanced(text)
    assert text.isascii(), "LaTeX knows few other characters"


def test_tables_are_the_same_bytes_twice(csv, of_campaign, tmp_path):
    again = write_tables(tmp_path, csv[0])
    files = sorted(path.name for path in of_campaign.iterdir())
    assert files == sorted(path.name for path in again.iterdir()) and len(files) == 3 * len(TABLES) + 3
    for name in files:
        assert (of_campaign / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.parametrize("case", ["no successful run", "one run", "one replicate"])
def test_tables_cope_with_little(case, tmp_path):
    runs, epochs = campaign(replicates=1)
    if case == "one run":
        runs = runs[:1]
    if case == "no successful run":
        runs = runs.assign(status="missing", reason="not run", epoch_time_s=None)
    omitted = ["adjusted", "drift", "checks", "residuals"] if case == "one run" else []
    folder = write_tables(tmp_path / "tables", write_frames(tmp_path, runs, epochs)[0], omitted)
    names = [name for name in TABLES if name not in omitted]
    assert sorted(path.stem for path in folder.glob("*.tex")) == names
    for name in names:
        assert "nan" not in (folder / f"{name}.md").read_text(), name


def test_unknown_table_cannot_be_omitted(csv, tmp_path):
    with pytest.raises(InputError) as refused:
        write_tables(tmp_path / "tables", csv[0], ["check"])
    assert (refused.value.code, refused.value.got) == ("unknown-name", "check")
    assert not (tmp_path / "tables").exists()


def test_a_broken_csv_gives_one_line_and_status_2(tmp_path, capsys):
    (tmp_path / "runs.csv").write_text("run_id,statis\nx,ok\n")
    assert exit_status(lambda: write_tables(tmp_path / "tables", tmp_path / "runs.csv")) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "statis: " in line and "'status'" in line and line.endswith(" [unknown-key]\n")
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("rows", [2, 0])
def test_notes_of_a_table_are_read_back(rows, tmp_path):
    display = pd.DataFrame({"a|b": ["1"] * rows, "c": ["2"] * rows})
    notes = ["One note: of | and *.", "Another one.\nOn two lines."]
    tables.write(tables.Table("Title", display, display, notes), tmp_path / "t")
    assert tables.read(tmp_path / "t").notes == notes
    tables.write(tables.Table("Title", display, display), tmp_path / "t")
    assert tables.read(tmp_path / "t").notes == []


def test_a_table_without_rows_is_a_line_that_says_why(tmp_path):
    empty = pd.DataFrame({"run": [], "status": []})
    tables.write(tables.Table("Failures", empty, empty, ["A reason."]), tmp_path / "t")
    assert (tmp_path / "t.md").read_text() == "**Failures**\n\nA reason.\n"
    assert (tmp_path / "t.tex").read_text() == "% Failures: A reason.\n"
    assert (tmp_path / "t.csv").read_text() == "run,status\n", "programs read it as before"
    assert why_empty(tables.read(tmp_path / "t")) == "A reason"
    tables.write(tables.Table("Failures", empty, empty), tmp_path / "t")
    assert (tmp_path / "t.md").read_text() == f"**Failures**\n\n{tables.NO_ROWS}\n"


def test_of_very_many_rows_people_read_the_first(tmp_path):
    display = pd.DataFrame({"row": [f"row {number}" for number in range(tables.MAX_PRINTED_ROWS + 1)]})
    tables.write(
        tables.Table("Title", display, display, ["A note."], rules_above=[10, tables.MAX_PRINTED_ROWS]),
        tmp_path / "t",
    )
    read = tables.read(tmp_path / "t")
    assert len(read.data) == tables.MAX_PRINTED_ROWS + 1 and len(read.display) == tables.MAX_PRINTED_ROWS
    assert read.notes == ["The first 1,000 of 1,001 rows; all are in t.csv.", "A note."], "the wording, once"
    assert (
        "row 999" in (tmp_path / "t.tex").read_text() and "row 1000" not in (tmp_path / "t.tex").read_text()
    )


@pytest.mark.parametrize(("text", "code"), [(None, "broken-file"), ("no table\n", "not-a-table")])
def test_what_is_no_table_is_refused_by_its_file(tmp_path, text, code):
    if text:
        (tmp_path / "t.md").write_text(text)
        (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(InputError) as refused:
        tables.read(tmp_path / "t")
    assert (refused.value.code, refused.value.file) == (code, str(tmp_path / "t.md"))
    assert refused.value.hint


def test_table_floats_in_column_where_it_fits():
    frame = pd.DataFrame(
        {"factor": ["nodes", "framework"], "levels": ["1, 2", "pytorch-ddp, horovod-pytorch, " * 3]}
    )
    table = tables.Table("T", frame, frame, left_aligned=["factor", "levels"])
    narrow = tables.Table("T", frame[:1], frame[:1], left_aligned=["factor", "levels"])
    assert r"\begin{table}" in tables.latex(narrow, "tab:t") and r"\begin{table*}" in tables.latex(
        table, "tab:t"
    )
    wrapped = tables.latex(table, "tab:t", wrap_to_column=True)
    widths = [float(width) for width in re.findall(r"p\{([\d.]+)em\}", wrapped)]
    assert r"\begin{table}" in wrapped and 8 * sum(widths) <= tables.COLUMN_PT
    balanced(wrapped)


def test_table_fits_a_float_by_lines_and_width():
    def make_table(rows, columns):
        frame = pd.DataFrame({f"column {place}": ["1.234 [1.000, 1.500]"] * rows for place in range(columns)})
        return tables.Table("T", frame, frame)

    assert tables.fits_float(make_table(20, 4), 20)
    assert not tables.fits_float(make_table(21, 4), 20) and not tables.fits_float(make_table(3, 20), 20)
