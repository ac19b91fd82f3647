"""Warnings of libraries in a rank are collected, each once, and still go to its log."""

import warnings
from collections.abc import Iterator

import pytest

from ranks.worker.library_warnings import MAX_CHARACTERS, MAX_WARNINGS, LibraryWarnings


@pytest.fixture
def collected() -> Iterator[LibraryWarnings]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield LibraryWarnings()


def test_first_lines_are_collected_once(
    collected: LibraryWarnings, capsys: pytest.CaptureFixture[str]
) -> None:
    for sizes in ("[64, 64]", "[64, 32]"):
        warnings.warn(f"Grad strides do not match.\ngrad.sizes() = {sizes}", stacklevel=1)
    warnings.warn(FutureWarning("use another function"), stacklevel=1)
    assert collected.messages == [
        "UserWarning: Grad strides do not match.", "FutureWarning: use another function"
    ]  # fmt: skip
    assert "grad.sizes() = [64, 32]" in capsys.readouterr().err


def test_many_or_long_warnings_stay_small(collected: LibraryWarnings) -> None:
    for number in range(2 * MAX_WARNINGS):
        warnings.warn(f"{number} {'x' * 1000}", stacklevel=1)
    warnings.warn("", stacklevel=1)
    assert len(collected.messages) == MAX_WARNINGS
    assert max(map(len, collected.messages)) == MAX_CHARACTERS


def test_ignored_warnings_are_not_collected(collected: LibraryWarnings) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert collected.messages == []
