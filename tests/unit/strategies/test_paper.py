"""The paper's figures: questions of the search, and figures of kept answers."""

import json

import pytest

from strategies import paper
from strategies.paper import Point
from strategies.problem import MESSAGES, RING

STARTED = {
    "alexnet": (0.3, 0.2, 0.1)
}  # seconds of data parallelism, of the expert's rule, and of what was found


def test_points_have_64_samples_per_device():
    question = Point("rnn-lm", "k80", 32, MESSAGES).question(100)
    assert (question.batch, question.topology.devices, question.topology.tiers[0].units) == (2048, 32, 4)
    assert (question.gradients, question.starts, question.proposals) == (MESSAGES, ("data", "expert"), 100)
    assert Point("alexnet", "p100", 2, RING).question(1).topology.devices == 2


def answers(data, expert, searched_s):
    sent = {"sent_activation_bytes": 10**9, "gradient_bytes": 2 * 10**9}
    progress = {"progress": [[1, data], [50, searched_s], [100, searched_s]], "wall_s": 2.0}
    return [
        {"method": None, "start": "data", "seconds": data, **sent},
        {"method": None, "start": "expert", "seconds": expert, **sent},
        *(
            {"method": "metropolis", "start": start, "seconds": searched_s, **sent, **progress}
            for start in paper.STARTS
        ),
        {"method": "annealing", "start": "data", "seconds": None, **sent, **progress},
    ]


def test_kept_answers_are_drawn_without_search(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paper, "run_planner", lambda question, python: pytest.fail("a search was started"))
    (tmp_path / "answers").mkdir()
    for point in paper.list_points(["p100"]):
        point_answers = answers(*STARTED.get(point.network, (0.2, 0.2, 0.2)))
        (tmp_path / "answers" / f"{point.name}.100.json").write_text(json.dumps(point_answers))
    paper.main(out=tmp_path, clusters=["p100"], proposals=100)
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "alexnet" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["16 p100", "alexnet", way, "300", "200", "100", "3.00", "2.00"] for way in (RING, MESSAGES)
    ]
    for name in ("throughput-p100", "sent-p100", "progress", "speedups"):
        assert any(tmp_path.glob(f"{name}.*"))
    frame = paper.strategy_rows({Point("alexnet", "p100", 16, RING): answers(*STARTED["alexnet"])})
    assert frame.set_index("line")["rate"].to_dict() == {
        "data": pytest.approx(64 / 0.3),
        "expert": pytest.approx(320),
        "found": pytest.approx(640),
    }
