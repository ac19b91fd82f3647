"""The document of measurements keeps what is not measured anew."""

from pathlib import Path

import pytest

from common.errors import InputError
from document import HEAD, with_part, write_part


def test_a_part_replaces_itself_and_nothing_else() -> None:
    with_both = with_part(with_part(HEAD, "epochs", "old epochs"), "study", "a study")
    again = with_part(with_both + "A remark.\n", "epochs", "new epochs")
    assert again == with_both.replace("old epochs", "new epochs") + "A remark.\n"
    assert with_part(again, "epochs", "new epochs") == again


def test_the_document_is_made_where_it_is_absent(tmp_path: Path) -> None:
    write_part("study", "a study", tmp_path / "measurements.md")
    text = (tmp_path / "measurements.md").read_text()
    assert text.startswith(HEAD) and text.count("a study") == 1


def test_half_a_pair_of_markers_is_refused() -> None:
    text = with_part(HEAD, "study", "a study").replace("<!-- end of overhead study -->", "")
    with pytest.raises(InputError, match="one is missing"):
        with_part(text, "study", "a study")
