"""`ringside new`: from options, from answers on a terminal, or from the defaults."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from plan import new_study
from plan.new_study import Draft
from ringside import workflow
from ringside.app import run


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """What would have been written."""
    written: list[Draft] = []
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setattr(workflow, "set_variables", lambda: None)
    monkeypatch.setattr(new_study, "write_study", lambda name, draft, site: written.append(draft))
    monkeypatch.setattr("plan.cost.main", lambda **_: None)
    return written


def test_options_are_taken(drafts: list[Draft]) -> None:
    typed = (
        "new mine --framework pytorch-ddp --framework jax --model vgg-16 --data cifar-10 --nodes 2 "
        "--replicates 5"
    )
    assert run(typed.split()) == 0
    assert drafts == [Draft(("pytorch-ddp", "jax"), "vgg-16", "cifar-10", (2,), 5)]


def test_without_a_terminal_defaults_are_taken(drafts: list[Draft]) -> None:
    assert run(["new", "mine"]) == 0
    assert drafts == [Draft()]


def test_the_cost_is_printed_at_once(
    drafts: list[Draft], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned: list[dict[str, str]] = []
    monkeypatch.setattr("plan.cost.main", lambda **named: planned.append(named))
    assert run(["new", "mine", "--site", "local-devices"]) == 0
    assert planned == [{"study": "mine", "site": "local-devices"}]
    assert "./ringside run mine --site local-devices" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("new quickstart", "already-there"),
        ("new mine --nodes 0", "bad-arguments"),
        ("new", "missing-argument"),
    ],
)
def test_a_mistake_is_one_line(
    drafts: list[Draft], capsys: pytest.CaptureFixture[str], typed: str, code: str
) -> None:
    assert run(typed.split()) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and f"[{code}]" in message and not drafts


def test_a_terminal_is_asked_until_the_answer_is_right(tmp_path: Path) -> None:
    program = (
        "import sys; from plan import new_study; from ringside import app, workflow; "
        "workflow.set_variables = lambda: None; "
        "new_study.write_study = lambda name, draft, site: sys.exit(repr(draft)); "
        "sys.exit(app.run(['new', 'mine', '--replicates', '7']))"
    )
    terminal, program_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=CHECKOUT, stdin=program_end, stdout=program_end,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts")},
        start_new_session=True, text=True,
    ) as process:  # fmt: skip
        os.write(terminal, b"1, 2\npytorch-dpp\npytorch-ddp\n\ncifar-10\n")
        _, errors = process.communicate(timeout=60)
    os.close(terminal), os.close(program_end)
    assert errors.strip().splitlines()[-1] == repr(
        Draft(("pytorch-ddp",), "small-cnn", "cifar-10", (1, 2), 7)
    )


def test_names_are_checked_by_the_field() -> None:
    with pytest.raises(InputError) as refused:
        new_study.check_framework("pytorch-dpp")
    assert (refused.value.file, refused.value.suggestion) == ("--framework", "pytorch-ddp")
