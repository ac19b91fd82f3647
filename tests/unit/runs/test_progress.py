"""The line that a person sees as each run ends."""

import json
from pathlib import Path

import pytest

from runs.progress import Session


def published(results: Path, *done: str) -> dict[str, Path]:
    runs = {name: results / name / "record.json" for name in ("a", "b", "c", "d")}
    for name in done:
        runs[name].parent.mkdir()
        runs[name].touch()
    return runs


def test_it_says_what_is_done_left_and_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    runs = published(tmp_path, "a")
    Session(tmp_path, "s", runs)
    session = Session(tmp_path, "s", runs)
    now[0] += 100
    session.add("b", "ok")
    assert session.line("b", "ok", "0.2 s/epoch").split("|")[1:] == [" 2 left, about 3 min ", " 0 not ok"]
    now[0] += 20
    again = Session(tmp_path, "s", runs)  # another process, the same session
    again.add("c", "failed")
    line = again.line("c", "failed", "rank 0 ended")
    assert line.startswith("[3/4] failed") and line.endswith("rank 0 ended | 1 left, about 60 s | 1 not ok")
    again.add("d", "ok")
    assert "all runs done" in again.line("d", "ok", "x")
    ended = json.loads((tmp_path / "sessions" / "s.json").read_text())["ended"]
    assert [entry["run_id"] for entry in ended] == ["b", "c", "d"]
