"""A report states the commit that made it, and files that differ from it."""

import subprocess
from pathlib import Path

import pytest

from report.checkout import State, checkout_state


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_a_clean_checkout_is_its_commit(repository: Path) -> None:
    assert checkout_state(repository) == State(git(repository, "rev-parse", "HEAD"))


def test_changed_and_new_files_are_named(repository: Path) -> None:
    (repository / "file").write_text("2")
    (repository / "run.log").write_text("")
    (repository / "rules").mkdir()
    (repository / "rules" / "new.smk").write_text("")
    assert checkout_state(repository).changed == ("file", "rules/")


def test_a_copy_in_someone_elses_repository_has_no_commit(repository: Path) -> None:
    inner = repository / "copy"
    inner.mkdir()
    assert checkout_state(inner) == State(None)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkout_state(tmp_path) == State(None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout_state(tmp_path) == State(None)


def test_a_state_survives_a_command_line() -> None:
    for original in (State(None), State("ab" * 20, ("a b", "c'd"))):
        assert State.from_json(original.to_json()) == original
