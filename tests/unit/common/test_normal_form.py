"""A digest of code follows what the code does, and nothing else."""

import json
import os
import sys
from pathlib import Path

import pytest

from common import normal_form as forms
from common.files import CHECKOUT
from common.normal_form import digest_source, digest_sources, normal_form
from common.shell import capture

MODULE = '''
"""Train a model."""

import functools
from dataclasses import dataclass
from typing import Any

LIMIT = 3  # steps


@dataclass(frozen=True)
class Step:
    """One step."""

    loss: float
    time_s: float = 0.5


class Trainer:
    """Train."""

    rate: float = 0.1

    @functools.cache
    def steps(self, batches: list[Any], last: int = LIMIT) -> int:
        """Count."""
        n: int = 0
        for batch in batches:
            n += len(batch) * 2
            print(f"{n:>4} " "steps")
        if n > last:
            pass
        return n
'''
SAME_FORM = {
    "docstring of the module": ('"""Train a model."""', '"""Train a model, and time it."""'),
    "no docstring": ('    """One step."""\n', ""),
    "comment": ("# steps", "# of an epoch"),
    "line breaks": (
        "batches: list[Any], last: int = LIMIT",
        "\n        batches: list[Any],\n        last: int = LIMIT,\n    ",
    ),
    "parentheses": ("len(batch) * 2", "(len(batch) * 2)"),
    "quotes": ('f"{n:>4} " "steps"', "f'{n:>4} steps'"),
    "digits": ("LIMIT = 3", "LIMIT = 0x3"),
    "type of an argument": ("list[Any]", "list[object]"),
    "type of a result": (") -> int:", "):"),
    "type of a variable": ("n: int = 0", "n = 0"),
    "type of a field": ("loss: float", "loss: int"),
    "type of an attribute": ("rate: float = 0.1", "rate = 0.1"),
    "import of a type": ("from typing import Any", "from typing import Any, Protocol"),
    "block for type checkers": ("LIMIT = 3", "if TYPE_CHECKING:\n    from models import Graph\nLIMIT = 3"),
    "pass": (
        "        if n > last:\n            pass\n",
        "        if n > last:\n            pass\n            pass\n",
    ),
}
OTHER_FORM = {
    "constant": ("LIMIT = 3", "LIMIT = 4"),
    "type of a constant": ("LIMIT = 3", "LIMIT = 3.0"),
    "operator": ("len(batch) * 2", "len(batch) + 2"),
    "call": ("len(batch)", "sum(batch)"),
    "default": ("last: int = LIMIT", "last: int = 7"),
    "default of a field": ("time_s: float = 0.5", "time_s: float = 0.6"),
    "decorator": ("functools.cache", "functools.lru_cache(1)"),
    "argument of a decorator": ("frozen=True", "frozen=False"),
    "order of statements": (
        "import functools\nfrom dataclasses import dataclass",
        "from dataclasses import dataclass\nimport functools",
    ),
    "order of fields": ("loss: float\n    time_s: float = 0.5", "time_s: float\n    loss: float = 0.5"),
    "field that is none": ("loss: float", "loss: ClassVar[float]"),
    "name of an argument": ("last: int", "most: int"),
    "text": (' "steps"', ' "batches"'),
    "format": ("n:>4", "n:>5"),
    "comparison": ("n > last", "n >= last"),
    "indentation": ("        return n", "            return n"),
    "statement": ("        return n", "        n -= 1\n        return n"),
}


@pytest.mark.parametrize(("old", "new"), SAME_FORM.values(), ids=SAME_FORM)
def test_rewording_keeps_the_normal_form(old: str, new: str) -> None:
    assert old in MODULE
    assert normal_form(MODULE.replace(old, new, 1)) == normal_form(MODULE)


@pytest.mark.parametrize(("old", "new"), OTHER_FORM.values(), ids=OTHER_FORM)
def test_other_behaviour_is_another_normal_form(old: str, new: str) -> None:
    assert old in MODULE
    assert normal_form(MODULE.replace(old, new, 1)) != normal_form(MODULE)


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("@app.command()\ndef f(x: int): ...", "@app.command()\ndef f(x: str): ..."),
        ("class A(Model):\n    x: int", "class A(Model):\n    x: str"),
        ("@attrs.define\nclass A:\n    x: int", "@attrs.define\nclass A:\n    x: str"),
        ("import typing\nx = typing.get_type_hints(f)", "x = typing.get_type_hints(f)"),
        ('x = ""', 'x = b""'),
        ("x = None", "x = ..."),
        ("f(*a)", "f(a)"),
        ("f(**a)", "f({**a})"),
        ("def f(a, /, b): ...", "def f(a, b): ..."),
        ("def f(*, a): ...", "def f(a): ..."),
        ("x[1:]", "x[:1]"),
    ],
)
def test_annotations_that_code_can_read_count(source: str, changed: str) -> None:
    assert normal_form(source) != normal_form(changed)


def test_fields_of_a_named_tuple_stay_fields() -> None:
    assert normal_form("class A(NamedTuple):\n    x: int") == normal_form("class A(NamedTuple):\n    x: str")
    assert normal_form("class A(NamedTuple):\n    x: int") != normal_form("class A(NamedTuple):\n    y: int")


def test_yaml_counts_by_its_value(tmp_path: Path) -> None:
    texts = [
        "a: 1  # one\nb: [2, 3]\n",
        "a: 1\nb:\n  - 2\n  - 3\n",
        "b: [2, 3]\na: 1\n",
        "a: 1\nb: [2, 4]\n",
        "a: [\n",
        "a: [ \n",
    ]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
    first, reworded, reordered, changed, broken, otherwise_broken = (
        digest_source(tmp_path / f"{n}.yaml") for n in range(6)
    )
    assert first == reworded and len({first, reordered, changed, broken, otherwise_broken}) == 5


def test_ignored_keys_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "framework.yaml"
    digests = []
    for text in ("title: A\nmpi: true\n", "title: B\nmpi: true\n", "title: B\nmpi: false\n"):
        file.write_text(text)
        digests.append((digest_source(file, ("title",)), digest_source(file)))
    assert digests[0][0] == digests[1][0] != digests[2][0]
    assert len({full_digest for _, full_digest in digests}) == 3


def test_invalid_python_is_digested_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    digests = []
    for content in (b"def f(:", b"def f(: ", b"x = '\xff'", b"x = 1\x00"):
        file.write_bytes(content)
        digests.append(digest_source(file))
    assert len(set(digests)) == 4


def test_names_of_files_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    before = digest_sources([tmp_path], tmp_path)
    (tmp_path / "a.py").write_text("x = 1  # one")
    assert digest_sources([tmp_path], tmp_path) == before
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert digest_sources([tmp_path], tmp_path) != before


KEEP = (
    "import sys; from pathlib import Path; from common.normal_form import digest_sources; "
    "print(digest_sources([Path(sys.argv[1])], Path(sys.argv[1])))"
)


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"a": 1}'])
def test_digests_are_kept_between_programs(tmp_path: Path, broken: str) -> None:
    folder, cache = tmp_path / "code", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()
    (folder / "a.py").write_text("x = 1")
    cache_file = cache / forms.CACHE_FILE
    cache_file.write_text(broken)

    def digest() -> str:
        environment = {
            **os.environ,
            "RINGSIDE_CACHE": str(cache),
            "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts"),
        }
        return capture([sys.executable, "-c", KEEP, str(folder)], env=environment, check=True).stdout

    first = digest()
    (entry,) = json.loads(cache_file.read_text()).items()
    assert digest() == first
    cache_file.write_text(json.dumps({entry[0]: "0" * 64}))
    assert digest() != first, "it is read, not made again"
