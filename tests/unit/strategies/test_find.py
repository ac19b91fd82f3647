"""What `make strategies` is asked, and what it answers."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from strategies import find
from strategies.topology import Level

PROPOSALS = 10_000


@pytest.fixture(scope="module")
def planner(real):
    """The interpreter with numba."""
    return Path(real("planner")["python"]["executable"])


def topology(*argv):
    return find.asked(["--model", "lenet-5", "--batch-size", "64", *argv])[0].topology


def test_devices_and_links_are_those_of_a_file_or_as_asked():
    assert topology().levels == (Level(4, 20e9, 5e-6), Level(4, 12.5e9, 1e-5))
    assert topology("--devices", "2").levels == (Level(2, 20e9, 5e-6),)
    assert topology("--devices", "16", "--node", "8").levels == (Level(8, 20e9, 5e-6), Level(2, 12.5e9, 1e-5))
    assert topology("--links", "900,8").levels == (Level(4, 112.5e9, 5e-6), Level(4, 1e9, 1e-5))
    beyond = topology("--topology", "h100", "--devices", "16", "--links", "3600,400")
    assert beyond.levels == (Level(8, 450e9, 3e-6), Level(2, 50e9, 3e-6))


def test_a_search_may_leave_out_the_random_start():
    question, _ = find.asked(["--model", "lenet-5", "--batch-size", "64", "--starts", "data", "expert"])
    assert question.job()["starts"] == ("data", "expert")
    assert find.asked(["--model", "lenet-5", "--batch-size", "64"])[0].job()["starts"] == ("data", "expert", "random")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--model", "lenet"], "--model: there is no lenet; did you mean 'lenet-5'?"),
        (["--topology", "p10"], "topology p10: there is no config/topologies/p10.yaml; did you mean 'p100'?"),
        (["--devices", "10", "--node", "4"], "--devices: 10 devices do not fill nodes of 4; expected a multiple of it"),
        (["--devices", "0"], "argument --devices: 0 is too small; expected 1 to 1024"),
        (["--devices", "6", "--node", "3"], "--batch-size: 64 samples cannot be divided by 6 devices; the next that can is 66"),
        (["--links", "fast"], "argument --links: 'fast' are no rates; expected such as 900,100"),
        (["--topology", "h100", "--devices", "16"], "--links: h100 has no links between nodes; give --links within,between in Gbit/s"),
        (["--tokens", "8:20"], "--model lenet-5 takes images: give --image, not --tokens"),
        (["--image", "224"], "argument --image: '224' is no image; expected HEIGHTxWIDTHxCHANNELS, such as 224x224x3"),
        (["--tokens", "40"], "argument --tokens: '40' are no tokens; expected LENGTH:VOCABULARY, such as 40:10000"),
        (["--image", "2x2x1"], "model lenet-5 cannot be built for images of 2 x 2 pixels"),
    ],
)  # fmt: skip
def test_a_question_that_is_none_is_answered_in_one_line(argv, said):
    with pytest.raises(InputError) as refused:
        find.asked(["--model", "lenet-5", "--batch-size", "64", *argv])
    assert str(refused.value).startswith(said) and len(str(refused.value).splitlines()) == 1


def test_a_change_ends_as_a_simulation_of_all_on_all_models(planner):
    done = subprocess.run(
        [planner, CHECKOUT / "tests" / "support" / "planner_properties.py", str(PROPOSALS)],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    proposals, taken = (int(word) for word in done.stdout.split() if word.isdigit())
    assert proposals >= PROPOSALS and taken > proposals / 20 and "compiled: True" in done.stdout


def test_a_model_that_fits_nowhere_is_said_to(planner):
    assert planner.exists()
    with pytest.raises(InputError, match=r"^vgg-16: no strategy was found .* which has 16.0 GB; give more devices"):
        find.main(["--model", "vgg-16", "--batch-size", "4096", "--devices", "1", "--proposals", "20"])


def test_strategies_are_found_and_told(planner, tmp_path, capsys):
    assert planner.exists()
    stem = tmp_path / "found"
    asked = ["--model", "alexnet", "--image", "64x64x3", "--batch-size", "64", "--devices", "4", "--proposals", "2000"]
    find.main([*asked, "--out", str(stem)])
    told = json.loads(stem.with_suffix(".json").read_text())
    by_name = {(answer["method"], answer["start"]): answer for answer in told["answers"]}
    data = by_name[None, "data"]["seconds"]
    for method in ("metropolis", "annealing"):
        assert by_name[method, "data"]["seconds"] <= data and by_name[method, "data"]["progress"][-1][1] <= data
    assert min(answer["seconds"] for answer in told["answers"]) < 0.9 * data, "dense layers need not be copied"
    shown = stem.with_suffix(".md").read_text()
    assert "data parallelism" in shown and "Metropolis-Hastings, from data parallelism" in shown
    assert stem.with_suffix(".png").stat().st_size > 10_000 and (tmp_path / "found.progress.png").exists()
