"""Options and answers of `ringside strategies --model`."""

import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.options import parse_arguments
from strategies import find
from strategies.problem import FASTEST
from strategies.question import build_question
from strategies.topology import NUMBER_BYTES, LinkTier

PROPOSALS = 10_000


@pytest.fixture(scope="module")
def planner(real):
    """Return the interpreter with numba."""
    return Path(real("planner")["python"]["executable"])


def parse_question(*options):
    return build_question(
        **parse_arguments(build_question, ["--model", "lenet-5", "--batch-size", "64", *options])
    )


def topology(*options):
    return parse_question(*options).topology


def test_topology_is_that_of_file_or_options():
    assert topology().tiers == (LinkTier(4, 20e9, 5e-6), LinkTier(4, 12.5e9, 1e-5))
    assert topology("--devices", "2").tiers == (LinkTier(2, 20e9, 5e-6),)
    assert topology("--devices", "16", "--node", "8").tiers == (
        LinkTier(8, 20e9, 5e-6),
        LinkTier(2, 12.5e9, 1e-5),
    )
    assert topology("--links", "900,8").tiers == (LinkTier(4, 112.5e9, 5e-6), LinkTier(4, 1e9, 1e-5))
    nodes = topology("--topology", "h100", "--devices", "16", "--links", "3600,1600")
    assert nodes.tiers == (LinkTier(8, 450e9, 3e-6), LinkTier(2, 200e9, 1e-5)), "all links of a node together"
    beyond = topology("--topology", "virtual", "--devices", "8", "--links", "8,1")
    assert beyond.tiers == (LinkTier(4, 1e9, 540e-6), LinkTier(2, 125e6, 540e-6))


def test_precision_has_its_own_peak():
    single, half = (
        parse_question("--topology", "h100", "--devices", "2", "--precision", name) for name in NUMBER_BYTES
    )
    assert (single.topology.device.flops, half.topology.device.flops) == (494.5e12, 989.5e12)
    assert (single.job()["precision"], half.job()["precision"]) == ("fp32", "amp")


def test_buckets_are_those_of_ddp_or_option():
    assert parse_question().bucket_bytes == (2**20, 25 * 2**20)
    assert parse_question("--buckets", "0.5,8").job()["bucket_bytes"] == (2**19, 2**23)
    assert parse_question("--buckets", "4").bucket_bytes == (2**22, 2**22)
    assert parse_question().gradients == FASTEST


def test_a_search_may_leave_out_the_random_start():
    assert parse_question("--starts", "data", "expert").job()["starts"] == ("data", "expert")
    assert parse_question().job()["starts"] == ("data", "expert", "random")


@pytest.mark.parametrize(
    ("argv", "code", "file", "got", "words"),
    [
        (["--model", "lenet"], "unknown-name", "--model", "lenet", "'lenet-5'"),
        (["--devices", "10", "--node", "4"], "indivisible-devices", "--devices", 10, "4"),
        (["--devices", "6", "--node", "3"], "indivisible-batch", "--batch-size", 64, "66"),
        (["--topology", "virtual", "--devices", "16"], "missing-key", "--links", None, "virtual"),
        (["--seed", "-1"], "out-of-range", "--seed", -1, "0"),
        (["--links", "1e-300"], "bad-pattern", "--links", "1e-300", "0.01"),
        (["--precision", "amp"], "missing-key", "--precision", "amp", "p100"),
        (["--tokens", "8:20"], "conflicting-keys", "", "--tokens", "--image"),
        (["--image", "2x2x1"], "not-possible-here", "", "lenet-5", "2 x 2"),
        (["--space", "layers"], "unknown-name", "--space", "layers", "soap"),
        (
            ["--model", "llama-moe-nano", "--space", "soap"],
            "not-possible-here",
            "",
            "llama-moe-nano",
            "experts",
        ),
    ],
)
def test_impossible_question_is_refused(argv, code, file, got, words):
    with pytest.raises(InputError) as refused:
        parse_question(*argv)
    assert (refused.value.code, refused.value.file, refused.value.got) == (code, file, got)
    assert words in str(refused.value) and len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--devices", "0"], ["--devices", "at least 1"]),
        (["--restarts", "1001"], ["--restarts", "at most 1000"]),
        (["--links", "fast"], ["--links", "'fast'", "900,100"]),
        (["--buckets", "1,25,25"], ["--buckets", "'1,25,25'", "1,25"]),
        (["--image", "224"], ["--image", "'224'", "HEIGHTxWIDTHxCHANNELS"]),
        (["--tokens", "40"], ["--tokens", "'40'", "LENGTH:VOCABULARY"]),
        (["--topology", "p1000"], ["--topology", "'p100'"]),
    ],
)
def test_a_broken_option_is_named_with_what_is_expected(argv, words):
    with pytest.raises(InputError) as refused:
        parse_question(*argv)
    assert all(word in str(refused.value) for word in words) and len(str(refused.value).splitlines()) == 1


def test_incremental_simulation_equals_full_one_on_all_models(planner):
    process = subprocess.run(
        [planner, CHECKOUT / "tests" / "support" / "planner_properties.py", str(PROPOSALS)],
        env=os.environ
        | {"PYTHONPATH": f"{CHECKOUT / 'workflow' / 'scripts'}{os.pathsep}{CHECKOUT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    proposals, accepted = (int(word) for word in process.stdout.split() if word.isdigit())
    assert proposals >= PROPOSALS and accepted > proposals / 20 and "compiled: True" in process.stdout


def test_model_beyond_memory_is_refused(planner):
    assert planner.exists()
    options = ["--devices", "1", "--proposals", "20", "--restarts", "1", "--space", "soap"]
    with pytest.raises(InputError) as refused:
        find.search(parse_question("--model", "vgg-16", "--batch-size", "4096", *options))
    assert (refused.value.code, refused.value.file) == ("too-little-memory", "vgg-16")
    assert refused.value.got > 16e9 and "16.0 GB" in refused.value.expected


def test_step_beyond_the_clock_is_refused(planner):
    assert planner.exists()
    options = ["--batch-size", "10000000", "--topology", "virtual", "--devices", "1", "--proposals", "1"]
    options += ["--space", "soap"]
    with pytest.raises(InputError) as refused:
        find.search(parse_question("--model", "vgg-16", *options, "--restarts", "1"))
    assert (refused.value.code, refused.value.file, refused.value.got) == ("too-slow", "--batch-size", 10**7)


def test_search_writes_table_answers_and_figures(planner, tmp_path, capsys):
    assert planner.exists()
    stem = tmp_path / "found"
    find.search(
        parse_question(
            "--model",
            "alexnet",
            "--image",
            "64x64x3",
            "--devices",
            "4",
            "--proposals",
            "2000",
            "--restarts",
            "2",
        ),
        stem,
    )
    content = json.loads(stem.with_suffix(".json").read_text())
    by_name = {(answer["method"], answer["start"]): answer for answer in content["answers"]}
    data = by_name[None, "data"]["seconds"]
    for method in ("metropolis", "annealing"):
        assert (
            by_name[method, "data"]["seconds"] <= data and by_name[method, "data"]["progress"][-1][1] <= data
        )
        assert len(by_name[method, "data"]["restarts"]) == 2
        assert min(by_name[method, "data"]["restarts"]) == by_name[method, "data"]["seconds"]
    assert min(answer["seconds"] for answer in content["answers"]) < 0.9 * data, (
        "dense layers need not be copied"
    )
    rows = pd.read_csv(stem.with_suffix(".csv")).query("method == 'annealing' and start == 'data'")
    assert rows.iloc[0][["step_s", "median_restart_s", "slowest_restart_s"]].is_monotonic_increasing
    table = stem.with_suffix(".md").read_text()
    assert all(
        find.strategy_name(method, start) in table for method, start in (("", "data"), ("metropolis", "data"))
    )
    assert stem.with_suffix(".png").stat().st_size > 10_000 and (tmp_path / "found.progress.png").exists()
