"""The table of costs: each layer and its smallest parts, and the cost of messages."""

import pytest

from common.notes import find_note
from strategies.costs_table import build_rows, message_notes, table
from support.timed_parts import handled, run_of, timed


def test_table_has_each_layer_and_its_smallest_parts() -> None:
    run = run_of()
    result = table(timed(run), handled())
    conv = build_rows(timed(run)).set_index("layer").loc["conv1"]
    assert (conv["forward_s"], conv["backward_s"], conv["update_s"]) == (1.0, 2.0, 0.5)
    assert (conv["parts_by_samples"], conv["by_samples_s"], conv["otherwise_s"]) == (4, 1.25, 1.25)
    assert result.display["layer"].tolist()[:2] == ["conv1", "average_pool1"]
    assert result.display["a part by samples (ms)"].iloc[0] == "1250 (of 4)"
    cost = find_note(message_notes(handled()), "message-cost")
    times = {"send_s": 5e-5, "send_byte_s": 1e-9, "receive_s": 8e-5, "receive_byte_s": 2e-9}
    assert {name: cost.facts[name] for name in times} == pytest.approx(times) and cost in result.notes
    failed = table(timed(run, status="failed", reason="it broke").iloc[:1], handled())
    assert failed.display["status"].tolist() == ["failed"]
