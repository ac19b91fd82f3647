"""The commands of docs/how-to/import.md do what the page says, with the files that it shows."""

import re
import shlex
from pathlib import Path

import pytest

from common.files import CHECKOUT
from common.tables import read_table
from importers import campaign
from ringside.app import run
from support.pages import Page

FILES = Path(__file__).parent / "files"
LOGS = Path(__file__).parents[1] / "training_logs" / "logs"
NAME = "docs/how-to/import.md"


def test_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(NAME, (CHECKOUT / NAME).read_text(encoding="utf-8"))
    (tmp_path / "runs.csv").write_text(page.blocks("text")[0])
    (tmp_path / "our-gpus.yaml").write_text(page.blocks("yaml")[0])
    (tmp_path / "all_reduce.txt").write_bytes((FILES / "all_reduce.txt").read_bytes())
    text = (LOGS / "megatron.log").read_text()
    for nodes in (8, 16):
        log = tmp_path / "logs" / f"n{nodes}-first.log"
        log.parent.mkdir(exist_ok=True)
        own_text = text if nodes == 8 else re.sub(r".* (world|data_parallel)_size .*\n", "", text)
        log.write_text(own_text.replace("812.6", f"8{nodes}.6"))
    monkeypatch.setattr(campaign, "_version", lambda: "0.0")
    monkeypatch.setattr(campaign, "CHECKOUT", tmp_path)
    monkeypatch.setattr(campaign, "STUDIES", tmp_path / "config" / "studies")
    monkeypatch.setattr("ringside.app.CHECKOUT", tmp_path)
    monkeypatch.setattr("ringside.workflow.set_variables", lambda: None)
    monkeypatch.chdir(tmp_path)
    commands = [line for block in page.blocks("sh") for line in block.splitlines()]
    assert len(commands) == 4 and run(["import", "--help"]) == 0
    for command in commands:
        assert run(shlex.split(command)[1:]) == 0
    folder = tmp_path / "results"
    runs = read_table(folder / "our-gpus" / "imported" / "runs.csv", "runs")
    assert len(runs) == 6 and runs["epoch_time_s"].max() == pytest.approx(0.4131 * 4)
    assert len(read_table(folder / "our-gpus" / "imported" / "network.csv", "network")) == 6
    logs = read_table(folder / "our-llama" / "imported" / "runs.csv", "runs")
    assert logs["nodes"].tolist() == [16, 8] and set(logs["parallelism"]) == {"pipeline2-data-tensor4"}
    again = (folder / "our-gpus-again" / "imported" / "runs.csv").read_text()
    assert (
        again.replace("our-gpus-again", "our-gpus")
        == (folder / "our-gpus" / "imported" / "runs.csv").read_text()
    )
