"""LBANN's output, read from logs of real runs and of failures that were observed."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ranks.frameworks.lbann.output import LastWords, Output, UnreadableError, row

LOGS = Path(__file__).with_name("lbann_output")
VALIDATED = (
    LOGS / "validation.log"
).read_text()  # five epochs of digits on one rank, trained by Ringside's adapter


def read(text: str) -> Output:
    output = Output()
    for line in text.splitlines(keepends=True):
        output.read_line(line)
    return output


def test_every_epoch_is_read_as_it_was_printed():
    output = read(VALIDATED)
    assert [output.has_epoch(number) for number in range(6)] == [True] * 5 + [False]
    assert row(output.epochs[4], 1536) == {
        "epoch_time_s": 0.898678,
        "validation_time_s": 0.0588005,
        "steps": 26,
        "n_allreduces": 26,
        "samples_trained": 25 * 61 + 11,
        "train_loss": 0.0281741,
        "train_accuracy": 0.991536,
        "validation_loss": 0.0182516,
        "validation_accuracy": 0.992337,
    }
    assert output.epochs[4].train["objective function"] == 0.289751
    assert output.epochs[4].steps_s == {
        "mean": 0.0345395, "median": 0.0345745, "max": 0.042403, "min": 0.00921228, "stdev": 0.0060149,
    }  # fmt: skip


def test_an_epoch_without_all_samples_is_refused():
    too_few = VALIDATED.replace("iter/epoch = [26/5/0/0]", "iter/epoch = [13/5/0/0]")
    with pytest.raises(UnreadableError, match="trained on 743 samples in an epoch, not on 1536"):
        row(read(too_few).epochs[4], 1536)


def test_output_without_an_epoch_is_refused():
    with pytest.raises(UnreadableError, match="lacks epoch 2"):
        read(VALIDATED.replace("[2] Epoch", "[7] Epoch"))


def test_shares_come_from_the_table_of_training():
    output = read(VALIDATED)
    assert output.share("forward prop*") == pytest.approx(1.7001 / 4.5994)
    assert output.share("back prop*") == pytest.approx(2.6204 / 4.5994)
    assert read(VALIDATED.partition("Timer:")[0]).share("back prop*") is None


def test_versions_are_those_that_it_prints():
    assert read(VALIDATED).versions == {"LBANN": "0.104.0", "Hydrogen": "1.5.2", "Aluminum": "1.4.1"}


@pytest.mark.parametrize("cut", range(0, len(VALIDATED) - VALIDATED.index("[3] Epoch"), 997))
def test_output_that_is_cut_has_only_whole_epochs(cut):
    output = read(VALIDATED[: VALIDATED.index("[3] Epoch") + cut])
    n_epochs = sum(output.has_epoch(number) for number in range(5))
    assert 3 <= n_epochs <= 5
    everything = read(VALIDATED)
    assert output.epochs[:n_epochs] == [
        replace(epoch, steps_s=output.epochs[number].steps_s)
        for number, epoch in enumerate(everything.epochs[:n_epochs])
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-nan"])
def test_what_is_no_number_stays_none(value):
    output = read(VALIDATED.replace("cross-entropy : 0.0182516", f"cross-entropy : {value}"))
    assert not math.isfinite(row(output.epochs[4], 1536)["validation_loss"])


def test_statistics_of_no_steps_are_empty():
    message = "0.0345395s mean, 0.0345745s median, 0.042403s max, 0.00921228s min, 0.0060149s stdev"
    output = read(VALIDATED.replace(message, "N/A mean, nans median, -1.5s max, N/A min, infs stdev"))
    assert set(output.epochs[4].steps_s.values()) == {None}
    assert output.has_epoch(4)


def test_exponents_colours_and_progress_bars_are_read():
    progress = "Training epoch 4 [=>   ] 12%\rTraining epoch 4 [====>] 99%\r"
    text = VALIDATED.replace(
        "model0 (instance 0) training epoch 4 run time : 0.898678s",
        f"{progress}\x1b[32mmodel0 (instance 0) training epoch 4 run time : 8.98678e-01s\x1b[0m",
    )
    assert row(read(text).epochs[4], 1536)["epoch_time_s"] == 0.898678


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in VALIDATED.splitlines()
        if "epoch 4 cross-entropy" in line or "validation cross-entropy : 0.0182" in line
    ],
)
def test_a_number_that_is_cut_by_what_another_rank_says_is_none(line):
    start = line.index(": ") + 2
    for cut in range(start, len(line)):
        assert not read(VALIDATED.replace(line, f"{line[:cut]}\nmca: {line[cut:]}")).has_epoch(4)


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
        (
            [
                "Caught signal 15 (SIGTERM - 'terminate process') on rank 0",
                "   7: El::blas::Gemm(char, char, int)",
                "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
                "mpirun noticed that process rank 1 with PID 0 on node one exited on signal 9 (Killed).",
                "-----",
            ],
            "mpirun noticed that process rank 1 with PID 0 on node one exited on signal 9 (Killed).",
        ),
        (["epoch 3 began", "=======", "…"], "epoch 3 began"),
        ([], "it printed nothing"),
    ],
)  # fmt: skip
def test_the_reason_is_the_most_telling_line(lines, reason):
    words = LastWords()
    for line in lines:
        words.read_line(f"{line}\n")
    assert str(words) == reason
