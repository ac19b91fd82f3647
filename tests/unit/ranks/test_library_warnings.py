"""Warnings of libraries in a rank are collected, each once, and still go to its log."""

import warnings
from typing import Any

import pytest

from ranks.worker.library_warnings import MAX_CHARACTERS, MAX_WARNINGS, LibraryWarnings

logged: list[str] = []


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> LibraryWarnings:
    """Collect while all warnings are shown, which `logged` keeps in place of a log."""
    logged.clear()
    monkeypatch.setattr(warnings, "filters", [])
    warnings.simplefilter("always")
    monkeypatch.setattr(warnings, "showwarning", show)
    return LibraryWarnings()


def show(message: Any, *_: Any) -> None:
    logged.append(str(message))


def test_first_lines_are_collected_once(collected: LibraryWarnings) -> None:
    texts = [f"Grad strides do not match.\ngrad.sizes() = {sizes}" for sizes in ("[64, 64]", "[64, 32]")]
    for text in texts:
        warnings.warn(text, stacklevel=1)
    warnings.warn(FutureWarning("use another function"), stacklevel=1)
    assert collected.messages == [
        "UserWarning: Grad strides do not match.", "FutureWarning: use another function"
    ]  # fmt: skip
    assert logged == [*texts, "use another function"]


def test_many_or_long_warnings_stay_small(collected: LibraryWarnings) -> None:
    for number in range(2 * MAX_WARNINGS):
        warnings.warn(f"{number} {'x' * 1000}", stacklevel=1)
    warnings.warn("", stacklevel=1)
    assert len(collected.messages) == MAX_WARNINGS and len(logged) == 2 * MAX_WARNINGS + 1
    assert max(map(len, collected.messages)) == MAX_CHARACTERS


def test_ignored_warnings_are_not_collected(collected: LibraryWarnings) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert collected.messages == []
