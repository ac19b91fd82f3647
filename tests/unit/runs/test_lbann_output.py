"""What LBANN prints, read from logs of real runs and from what was seen to go wrong with them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from runs.frameworks.lbann.output import LastWords, Output, UnreadableError, row

LOGS = Path(__file__).with_name("lbann_output")
VALIDATED = (LOGS / "validation.log").read_text()  # five epochs of digits on one rank, as our adapter has them trained
UNVALIDATED = (LOGS / "no-validation.log").read_text()  # three epochs, and a test at the end


def read(text: str) -> Output:
    output = Output()
    for line in text.splitlines(keepends=True):
        output.take(line)
    return output


def test_every_epoch_is_read_as_it_was_printed():
    output = read(VALIDATED)
    assert [output.has(number) for number in range(6)] == [True] * 5 + [False]
    assert row(output.epochs[4], 1536) == {
        "epoch_time_s": pytest.approx(1.10444),
        "validation_time_s": pytest.approx(0.073241),
        "steps": 26,
        "exchanges": 26,
        "samples_trained": 25 * 61 + 11,
        "train_loss": pytest.approx(0.0217551),
        "train_accuracy": pytest.approx(0.994141),
        "validation_loss": pytest.approx(0.0375182),
        "validation_accuracy": pytest.approx(0.984674),
    }
    assert output.epochs[4].steps_s == {
        "mean": 0.0424535, "median": 0.043419, "max": 0.0514757, "min": 0.0112126, "stdev": 0.00661941,
    }  # fmt: skip


def test_an_epoch_is_scaled_to_the_data_sets_samples():
    epoch = read(VALIDATED).epochs[4]
    assert row(epoch, 2 * 1536)["epoch_time_s"] == pytest.approx(2 * 1.10444)


def test_shares_come_from_the_table_of_training_not_of_validation():
    output = read(VALIDATED)
    assert output.share("forward prop*") == pytest.approx(2.0337 / 5.3850)
    assert output.share("back prop*") == pytest.approx(3.0499 / 5.3850)
    assert read(VALIDATED.partition("Timer:")[0]).share("back prop*") is None


def test_versions_are_those_that_it_prints():
    assert read(VALIDATED).versions == {"LBANN": "0.104.0", "Hydrogen": "1.5.2", "Aluminum": "1.4.1"}


def test_a_last_test_is_no_validation():
    output = read(UNVALIDATED)
    assert len(output.epochs) == 3
    assert [epoch.validation for epoch in output.epochs] == [{}, {}, {}]
    assert not output.has(0)


@pytest.mark.parametrize("cut", range(0, len(VALIDATED) - VALIDATED.index("[3] Epoch"), 97))
def test_output_that_is_cut_has_only_whole_epochs(cut):
    output = read(VALIDATED[: VALIDATED.index("[3] Epoch") + cut])
    whole = sum(output.has(number) for number in range(5))
    assert 3 <= whole <= 5
    everything = read(VALIDATED)
    assert output.epochs[:whole] == [
        replace(epoch, steps_s=output.epochs[number].steps_s) for number, epoch in enumerate(everything.epochs[:whole])
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-nan"])
def test_what_is_no_number_stays_none(value):
    output = read(VALIDATED.replace("cross-entropy : 0.0375182", f"cross-entropy : {value}"))
    assert not math.isfinite(row(output.epochs[4], 1536)["validation_loss"])


def test_statistics_of_no_steps_are_empty():
    said = "0.0424535s mean, 0.043419s median, 0.0514757s max, 0.0112126s min, 0.00661941s stdev"
    output = read(VALIDATED.replace(said, "N/A mean, nans median, N/A max, N/A min, N/A stdev"))
    assert set(output.epochs[4].steps_s.values()) == {None}
    assert output.has(4)


def test_exponents_colours_and_progress_bars_are_read():
    progress = "Training epoch 4 [=>   ] 12%\rTraining epoch 4 [====>] 99%\r"
    text = VALIDATED.replace(
        "model0 (instance 0) training epoch 4 run time : 1.10444s",
        f"{progress}\x1b[32mmodel0 (instance 0) training epoch 4 run time : 1.10444e+00s\x1b[0m",
    )
    assert row(read(text).epochs[4], 1536)["epoch_time_s"] == pytest.approx(1.10444)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VALIDATED.replace("Trainers              : 1", "Trainers              : 2"), "made 2 trainers"),
        (VALIDATED.replace("model0 (instance 0) training epoch 1 run", "model0 (instance 1) training epoch 1 run"), "several models"),
        (VALIDATED.replace("[2] Epoch", "[7] Epoch"), "lacks epoch 2"),
    ],
)  # fmt: skip
def test_what_no_run_of_ours_prints_is_refused(text, said):
    with pytest.raises(UnreadableError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [
                "LBANN error on rank 1 (data_reader_numpy_npz.cpp:94): can't open file : train.npz",
                "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD",
                "with errorcode 1.",
            ],
            "LBANN error on rank 1 (data_reader_numpy_npz.cpp:94): can't open file : train.npz",
        ),
        (
            [
                "Process 0 caught error message:",
                "*" * 64,
                "numpy_reader: classes are not indexed from 0",
                "Stack trace:",
                "   0: lbann::stack_trace::get[abi:cxx11]()",
                "*" * 64,
                "[node1:23583] [[12513,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer",
            ],
            "numpy_reader: classes are not indexed from 0",
        ),
        (["mpirun noticed that process rank 1 exited on signal 9 (Killed).", "----"], "mpirun noticed that process rank 1 exited on signal 9 (Killed)."),
        (["\x1b[31mError: unknown flag\x1b[0m", "usage"], "Error: unknown flag"),
        (["epoch 3 began"], "epoch 3 began"),
        ([], "it said nothing"),
    ],
)  # fmt: skip
def test_the_reason_is_the_most_telling_line(lines, reason):
    words = LastWords()
    for line in lines:
        words.take(f"{line}\n")
    assert str(words) == reason
