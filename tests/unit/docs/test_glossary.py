"""The glossary has one word for one thing, and names that files really have."""

import re
from collections import Counter

from common.files import CHECKOUT
from support.pages import INLINE, page

REFERENCE = CHECKOUT / "docs" / "reference"
ENDINGS = {"_low", "_high"}  # of columns, not names


def rows() -> list[list[str]]:
    """The cells of all rows of the glossary's tables, without their heads."""
    lines = re.findall(r"^\| (?!term |---)(.*) \|$", page("docs/reference/glossary.md").text, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_every_name_of_data_exists() -> None:
    pages = [path for path in REFERENCE.glob("*.md") if path.stem != "glossary"]
    documented = {span for path in pages for span in INLINE.findall(path.read_text(encoding="utf-8"))}
    headings = {line for path in pages for line in re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)}
    named = {name for *_, data in rows() for name in INLINE.findall(data)}
    assert named - documented - headings - ENDINGS == set()
    assert len(named) > 60


def test_a_word_has_one_meaning() -> None:
    terms = [term for term, *_ in rows()]
    assert {len(row) for row in rows()} == {4}
    synonyms = [word for row in rows() for word in row[2].split(", ")]
    assert [term for term, n in Counter(terms).items() if n > 1] == []
    assert set(terms) & set(synonyms) == set()
