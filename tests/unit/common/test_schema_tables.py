"""CSV tables: what is written is read back, and a broken file gives one line that says where."""

import gzip
import math
import os
import time

import jsonschema
import pandas as pd
import pytest

from common import tables
from common.errors import InputError
from common.schemas import schema
from common.tables import read_table, write_table
from support.refusals import assert_refusal
from support.synthetic import benchmarks, campaign, write_campaign

UNDERSTOOD = {
    "type",
    "enum",
    "pattern",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "description",
    "default",
}
# Traits of factors, which are not checked in tables.
TRAITS = {
    "title",
    "unit",
    "symbol",
    "core",
    "supported_unless_named",
    "requires_flag",
    "set_by_ringside",
    "axis",
    "images_only",
    "without_effect_on",
}


@pytest.fixture(scope="module")
def runs():
    return campaign()[0].drop(columns="n_devices")


def broken(tmp_path, runs, old, new):
    path = tmp_path / "runs.csv"
    write_table(runs, "runs", path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_table(path, "runs")
    return caught.value


def test_what_is_written_is_read_back_with_all_digits(tmp_path, runs):
    path = tmp_path / "runs.csv"
    runs.loc[0, "epoch_time_s"] = 0.1 + 0.2
    runs.loc[1, "reason"] = 'said "no", twice,\nand NA'
    write_table(runs, "runs", path)
    back = read_table(path, "runs")
    assert list(back) == list(schema("runs")["properties"])
    assert back["epoch_time_s"][0] == 0.1 + 0.2
    assert back["reason"][1] == 'said "no", twice,\nand NA'
    for name in runs:
        expected = [None if pd.isna(x) else x for x in runs[name]]
        assert [None if pd.isna(x) else x for x in back[name]] == expected, name


def test_writing_twice_gives_equal_bytes_in_order_of_the_schema(tmp_path, runs):
    write_table(runs, "runs", tmp_path / "a.csv")
    write_table(runs[list(reversed(runs.columns))], "runs", tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_table_without_rows_keeps_its_columns_and_types(tmp_path, runs):
    write_table(runs.iloc[:0], "runs", tmp_path / "runs.csv")
    back = read_table(tmp_path / "runs.csv", "runs")
    assert len(back) == 0
    assert str(back["nodes"].dtype) == "Int64"


COUNT = "a whole number at least 1 and at most 1048576, or largest"
STATUSES = schema("runs")["properties"]["status"]["enum"]


@pytest.mark.parametrize(
    ("old", "new", "line", "code", "key", "facts", "message"),
    [
        ("run_id,study", "run_id,studdy", 1, "unknown-key", "studdy", {"suggestion": "study"},
         "unknown column; did you mean 'study'?"),
        ("run_id,study", "run_id,xyz", 1, "unknown-key", "xyz", {}, (
            "unknown column; expected columns of runs.schema.yaml"
        )),
        ("run_id,study", "run_id,run_id", 1, "duplicate", "run_id", {},
         "the column occurs twice"),
        (".r1,quickstart", ".r1,quickstart,more", 2, "wrong-field-count", "", {}, None),
        ("digits,16,1,", "digits,16.5,1,", 2, "wrong-type", "batch_size", {}, None),
        ("digits,16,1,", "digits,0,1,", 2, "out-of-range", "batch_size", {},
         f"'0' is not allowed; expected {COUNT}"),
        ("digits,16,1,", "digits,,1,", 2, "missing-value", "batch_size", {}, None),
        (",ok,", ",fine,", 2, "not-one-of", "status", {"expected": STATUSES}, None),
        (",local,custom", ",lokal,custom", 2, "not-one-of", "batch_scope",
         {"expected": ["local", "global"]}, None),
        (",false,", ",maybe,", 2, "wrong-type", "oversubscribed", {},
         "'maybe' is not allowed; expected true or false"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_one_line(tmp_path, runs, old, new, line, code, key, facts, message):
    error = broken(tmp_path, runs, old, new)
    assert_refusal(error, code, key, file=f"{tmp_path}/runs.csv, line {line}", **facts)
    assert message is None or str(error) == f"{tmp_path}/runs.csv, line {line}: {key}: {message}"


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize("quoted", [False, True])
def test_repeated_run_is_refused(tmp_path, runs, quoted):
    path = tmp_path / "runs.csv"
    write_table(runs.assign(reason='"no",\nit said' if quoted else None), "runs", path)
    again = path.read_text().split("\n", 1)[1].partition("\n" + runs["run_id"][1])[0] + "\n"
    path.write_text(path.read_text() + again)
    with pytest.raises(InputError) as caught:
        read_table(path, "runs")
    line = 1 + (len(runs) + 1) * (2 if quoted else 1)
    assert_refusal(caught.value, "duplicate", "", file=f"{path}, line {line}")


def test_repeated_epochs_and_repetitions_are_refused(tmp_path):
    _, epochs = write_campaign(tmp_path)
    lines = lines_of(epochs)
    epochs.write_text("".join([*lines, lines[15]]))
    twice = {"file": f"{epochs}, line {len(lines) + 1}"}
    with pytest.raises(InputError) as caught:
        read_table(epochs, "epochs")
    assert_refusal(caught.value, "duplicate", **twice)
    network = tmp_path / "network.csv"
    write_table(benchmarks("pytorch-ddp"), "network", network)
    lines = lines_of(network)
    network.write_text("".join([*lines, lines[3]]))
    with pytest.raises(InputError) as caught:
        read_table(network, "network")
    assert_refusal(caught.value, "duplicate", file=f"{network}, line {len(lines) + 1}")


@pytest.mark.parametrize(
    ("column", "value", "before"),
    [
        ("batch_size", 128, "16"),
        ("replicas", 3, "1"),
        ("baseline", "none", "'pytorch-single'"),
        ("optimizer", "adam", "'sgd'"),
    ],
)
def test_rows_of_a_cell_that_contradict_each_other_are_refused(tmp_path, runs, column, value, before):
    path = tmp_path / "runs.csv"
    changed = runs.assign(reason=None)
    changed.loc[2, column] = value
    write_table(changed, "runs", path)
    with pytest.raises(InputError) as caught:
        read_table(path, "runs")
    cell = runs["cell"][0]
    assert_refusal(
        caught.value, "contradicting-rows", column, [cell], file=f"{path}, line 4", expected=before
    )


def test_byte_order_mark_is_skipped(tmp_path):
    for path, name in zip(write_campaign(tmp_path), ("runs", "epochs"), strict=True):
        plain = read_table(path, name)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        pd.testing.assert_frame_equal(read_table(path, name), plain)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_folders_and_pipes_are_refused_as_tables(tmp_path, make):
    make(tmp_path / "runs.csv")
    with pytest.raises(InputError) as error:
        read_table(tmp_path / "runs.csv", "runs")
    assert_refusal(error.value, "broken-file")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_named(tmp_path, runs, separator):
    path = tmp_path / "runs.csv"
    write_table(runs, "runs", path)
    path.write_text("\ufeff" + path.read_text().replace(",", separator), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_table(path, "runs")
    assert_refusal(error.value, "wrong-separator")


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "0x10", "1_000", " 1", "-1", "0", "fast"])
def test_a_time_is_a_positive_finite_number(tmp_path, runs, text):
    value = repr(float(runs["epoch_time_s"][0]))
    error = broken(tmp_path, runs, f",{value},", f",{text},")
    is_number = text in ("1e999", "-1", "0")
    assert_refusal(error, "out-of-range" if is_number else "wrong-type", "epoch_time_s", [0])


def test_absent_required_column_is_refused(tmp_path, runs):
    with pytest.raises(InputError) as caught:
        write_table(runs.drop(columns="status"), "runs", tmp_path / "runs.csv")
    assert_refusal(caught.value, "missing-key", "status", file=f"{tmp_path}/runs.csv, line 1")
    assert not (tmp_path / "runs.csv").exists()


def test_a_bad_frame_leaves_the_old_file(tmp_path, runs):
    path = tmp_path / "runs.csv"
    write_table(runs, "runs", path)
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        write_table(runs.assign(epoch_time_s=-1.0), "runs", path)
    assert_refusal(caught.value, "out-of-range", "epoch_time_s", file=f"{path}, line 2")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["runs.csv"]


def test_an_absent_file_and_one_that_is_not_text_give_one_line(tmp_path):
    file = tmp_path / "runs.csv"
    for content, code, key, place in (
        (None, "missing-file", "", ""),
        (b"\xff\xfe\x00", "broken-file", "", ""),
        (b"", "missing-key", "run_id", ", line 1"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_table(file, "runs")
        assert_refusal(caught.value, code, key, file=f"{file}{place}")


def test_a_compressed_table_is_read_in_place_of_a_missing_one(tmp_path, runs):
    path, compressed = tmp_path / "runs.csv", tmp_path / "runs.csv.gz"
    write_table(runs, "runs", path)
    full, text = read_table(path, "runs"), path.read_bytes()
    n_lines = text.count(b"\n")
    compressed.write_bytes(b"not read while there is a plain one")
    pd.testing.assert_frame_equal(read_table(path, "runs"), full)
    path.unlink()
    compressed.write_bytes(gzip.compress(text, mtime=0))
    pd.testing.assert_frame_equal(read_table(path, "runs"), full)
    for content, code, line in (
        (gzip.compress(text + text.splitlines()[-1] + b"\n"), "duplicate", f", line {n_lines + 1}"),
        (gzip.compress(text)[:-9], "broken-file", ""),
        (gzip.compress(text)[:100] + b"x" * 100, "broken-file", ""),
        (gzip.compress(text + b"\n" * 10**7), "broken-file", ""),  # would need 1,000 times the memory
        (text, "broken-file", ""),
    ):
        compressed.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_table(path, "runs")
        assert (caught.value.code, caught.value.file) == (code, f"{compressed}{line}")


@pytest.mark.parametrize("name", ["runs", "epochs", "design", "network"])
def test_every_rule_of_the_table_schemas_is_understood(name):
    for column, rules in schema(name)["properties"].items():
        assert set(rules) <= UNDERSTOOD | TRAITS, column


@pytest.mark.parametrize("text", ["1", "0", "-3", "2.5", "1e3", "true", "ok", "abcdef012345", "local", ""])
def test_fields_are_judged_as_jsonschema_judges_them(text):
    for column, rules in schema("runs")["properties"].items():
        kind = tables._column_type(rules)
        judged = tables._is_allowed(tables._convert(text, kind), rules)
        try:
            value = {"integer": int, "number": float, "boolean": {"true": True}.__getitem__, "string": str}[
                kind
            ](text)
        except (ValueError, KeyError):
            assert not judged, column
            continue
        if not (kind == "number" and not math.isfinite(value)):
            assert judged == jsonschema.Draft202012Validator(rules).is_valid(value), column


def test_quoted_fields_are_read(tmp_path):
    path, _ = write_campaign(tmp_path)
    frame = read_table(path, "runs").assign(
        library_version='tensorflow 2.21.0, "tf_keras" 2.21.0', reason="a, b"
    )
    frame.loc[3, ["library_version", "reason", "hosts"]] = [None, " -, +.", "one"]
    write_table(frame, "runs", path)
    assert path.read_text().count('"tensorflow 2.21.0, ""tf_keras"" 2.21.0"') == len(frame) - 1
    pd.testing.assert_frame_equal(read_table(path, "runs"), frame)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (",1,true,", ",1,yes,"),
        (",1,true,", ",1.5,true,"),
        (",1,true,", ", 1,true,"),
        (",1,true,", ",1,true,true,"),
        (",1,true,", ",1,"),
        (",1,true,", ",0,true,"),
        ("\n", "\n\n"),
        (",1,true,", ",nan,true,"),
        (",1,true,", ",1,,"),
        (",1,true,", ",1.0,true,"),
        (",1,true,", ",1e0,true,"),
        (",1,true,", ",1,true,+"),
        (",1,true,0", ",1,true,"),
        (",1,true,", ",1\t,true,"),
    ],
)
def test_unusual_fields_are_refused(tmp_path, old, new):
    _, path = write_campaign(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError) as refused:
        read_table(path, "epochs")
    assert refused.value.file == f"{path}, line 2"


@pytest.mark.slow
def test_18000_runs_are_written_and_read_in_seconds(tmp_path, runs):
    copies = [runs.assign(run_id=runs["run_id"] + f".{copy}") for copy in range(18_000 // len(runs) + 1)]
    runs_table = pd.concat(copies, ignore_index=True)[:18_000]
    start = time.perf_counter()
    write_table(runs_table, "runs", tmp_path / "runs.csv")
    assert len(read_table(tmp_path / "runs.csv", "runs")) == 18_000
    assert time.perf_counter() - start < 20


def test_errors_of_two_lines_do_not_cancel(tmp_path):
    _, path = write_campaign(tmp_path)
    header, first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, f"{first},1", second.rpartition(",")[0], *rest]) + "\n")
    with pytest.raises(InputError) as caught:
        read_table(path, "epochs")
    fields = len(header.split(","))
    assert_refusal(caught.value, "wrong-field-count", "", [fields], file=f"{path}, line 2")
