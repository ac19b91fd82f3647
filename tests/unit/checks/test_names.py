"""The check that no name is a function word or too long."""

import pytest

from checks.names import find_function_words, find_long_names

WORDS = frozenset({"told", "of", "found"})


@pytest.mark.parametrize(
    "source",
    [
        "def told(): ...",
        "class Told: ...",
        "def size(of): ...",
        "found = 1",
        "for _found in (): ...",
        "import os as found",
        "class Cell:\n    def __init__(self):\n        self.found = 1",
        "def size(*, of=1): ...",
    ],
)
def test_every_kind_of_definition_is_checked(tmp_path, source):
    file = tmp_path / "module.py"
    file.write_text(source)
    assert len(find_function_words(file, WORDS)) == 1


def test_words_in_longer_names_and_uses_are_allowed(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("import os\n\nn_found_files = 1\nprint(os.told, told)\n")
    assert find_function_words(file, WORDS) == []


def test_names_have_their_lines(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("a = 1\nfound = 2\n_told = 3\n")
    assert find_function_words(file, WORDS) == [("found", 2), ("_told", 3)]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("class Link:\n    of: int = 1", 0),
        ("class Link:\n    found: int = 1", 1),
        ("class Link:\n    of = 1", 1),
        ("class Link:\n    def size(self):\n        of: int = 1", 1),
        ("of: int = 1", 1),
    ],
)
def test_only_annotated_class_attributes_may_be_file_keys(tmp_path, source, count):
    file = tmp_path / "module.py"
    file.write_text(source)
    assert len(find_function_words(file, WORDS, frozenset({"of"}))) == count


def test_names_over_the_limit_are_listed(tmp_path):
    file = tmp_path / "module.py"
    file.write_text("a_name = 1\ndef a_longer_name(): ...\nprint(some.attribute_of_a_library)\n")
    assert find_long_names(file, 12) == [("a_longer_name", 2)]
