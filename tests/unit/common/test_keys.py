"""What a class of keys refuses is an error whose code says which rule is broken.

What it takes has the types of the class.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from common.errors import InputError
from common.keys import (
    Keys,
    Line,
    Maybe,
    Pairs,
    ParsedFrom,
    Rules,
    Unique,
    json_schema,
    key,
    load,
    optional,
    parse,
)
from common.shell import capture


@dataclass(frozen=True)
class Part(Keys):
    count: int = key("how many", ge=1)


@dataclass(frozen=True)
class Choice(Keys):
    first: Maybe[tuple[str, ...]] = optional("one")
    second: Maybe[int] = optional("other")


@dataclass(frozen=True, kw_only=True)
class Sample(Keys):
    seed: int = key("a number", ge=0, le=9)
    rate: float = key("a rate", gt=0, lt=10, default=0.5)
    kind: Literal["full", "half"] = key("what it is", default="full")
    enabled: bool = key("whether", default=False)
    title: Line = key("a title", default="")
    note: Maybe[str] = optional("a note", pattern=r"^(?!no)[a-z]+\Z", max_length=5)
    names: Unique[tuple[str, ...]] = key("names", default=())
    pair: Maybe[Annotated[tuple[int, ...], Rules(min_length=2, max_length=2)]] = optional("two")
    parts: tuple[Part, ...] = key("parts", default=())
    limits: dict[str, Annotated[int, Rules("a limit", le=3)]] = key("limits", default_factory=dict)
    either: Maybe[int | Part] = optional("a number or a part")
    auto: Maybe[Annotated[int, Rules(ge=1)] | Literal["auto"]] = optional("cores, or auto")
    choice: Annotated[Choice, Rules(filled=True)] = key("one or the other", default_factory=Choice)
    pairs: Pairs[Annotated[str, Rules(pattern=r"^[A-Z]+\Z")], str] = key("variables", default=())
    exact: Maybe[Annotated[float, Rules(gt=0, exact=True)]] = optional("a number as it is written")
    share: Maybe[Annotated[float, ParsedFrom(Annotated[str, Rules(pattern=r"^\d+ %\Z")],
                                          lambda text: int(text[:-2]) / 100)]] = optional(
        "a share, as 5 %"
    )  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str, str, object]] = [
    ({"sed": 1}, "unknown-key", "x.sed", "sed"),
    ({"seed": True}, "wrong-type", "x.seed", True),
    ({"seed": 2.0}, "wrong-type", "x.seed", 2.0),
    ({"seed": 10**30}, "out-of-range", "x.seed", 10**30),
    ({"rate": float("inf")}, "wrong-type", "x.rate", float("inf")),
    ({"rate": 10}, "out-of-range", "x.rate", 10),
    ({"enabled": "yes"}, "wrong-type", "x.enabled", "yes"),
    ({"title": " "}, "bad-pattern", "x.title", " "),
    ({"note": None}, "wrong-type", "x.note", None),
    ({"note": "ab\n"}, "bad-pattern", "x.note", "ab\n"),
    ({"names": "ab"}, "wrong-type", "x.names", "ab"),
    ({"names": ["a", "a"]}, "duplicate", "x.names", "a"),
    ({"pair": [1]}, "too-few", "x.pair", 1),
    ({"parts": [{"count": 1}, {"count": 0}]}, "out-of-range", "x.parts.1.count", 0),
    ({"parts": [{}]}, "missing-key", "x.parts.0.count", None),
    ({"limits": {"a": 4}}, "out-of-range", "x.limits.a", 4),
    ({"either": "one"}, "wrong-type", "x.either", "one"),
    ({"either": {}}, "missing-key", "x.either.count", None),
    ({"auto": "all"}, "bad-value", "x.auto", "all"),
    ({"choice": {}}, "too-few", "x.choice", 0),
    ({"pairs": {"a": "b"}}, "bad-pattern", "x.pairs", "a"),
    ({"pairs": {"A": 1}}, "wrong-type", "x.pairs.A", 1),
    ({"exact": float("inf")}, "wrong-type", "x.exact", float("inf")),
    ({"exact": 0}, "out-of-range", "x.exact", 0),
    ({"share": "5"}, "bad-pattern", "x.share", "5"),
]


@pytest.mark.parametrize(("keys", "code", "place", "got"), REFUSED)
def test_broken_rule_gives_code_key_and_value(
    keys: dict[str, Any], code: str, place: str, got: object
) -> None:
    with pytest.raises(InputError) as refused:
        parse(Sample, {"seed": 1} | keys, Path("s.yaml"), "x")
    error = refused.value
    assert (error.code, error.file, error.key, error.got) == (code, "s.yaml", place, got)
    assert str(error).isprintable()


def test_valid_file_has_the_types_of_the_class(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "seed: 3\nrate: 2\ntitle: a\n  b\nnames: [a, b]\npair: [1, 2]\nparts: [{count: 7}]\nlimits: {a: 3}\n"
        "either: {count: 2}\nauto: auto\nshare: 5 %\nnote: yes\n"
        "choice: {first: [a]}\npairs: {B: y, A: x}\nexact: 1\n"
    )
    read = load(Sample, tmp_path / "a.yaml")
    assert read == Sample(
        seed=3,
        rate=2.0,
        title="a b",
        names=("a", "b"),
        pair=(1, 2),
        parts=(Part(7),),
        limits={"a": 3},
        either=Part(2),
        auto="auto",
        share=0.05,
        note="yes",
        choice=Choice(first=("a",)),
        pairs=(("A", "x"), ("B", "y")),
        exact=1,
    )
    assert (
        isinstance(read.rate, float)
        and isinstance(read.exact, int)
        and parse(Sample, {"seed": 1}, Path("s")) == Sample(seed=1)
    )


def test_schema_of_a_class_has_its_meanings_and_defaults() -> None:
    rules = json_schema(Sample)
    assert rules["required"] == ["seed"] and rules["properties"]["parts"]["items"]["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "description": "how many",
    }
    assert rules["properties"]["either"]["type"] == ["integer", "object"]
    assert {
        name: subrules.get("default")
        for name, subrules in rules["properties"].items()
        if subrules.get("default") is not None
    } == {"rate": 0.5, "kind": "full", "enabled": False, "title": ""}


def test_using_the_classes_imports_no_pydantic() -> None:
    program = (
        "import sys, declared.study, declared.site, declared.datasets, common.schemas;"
        "print({'pydantic', 'jsonschema', 'fastjsonschema'} & set(sys.modules))"
    )
    done = capture([sys.executable, "-c", program], check=True)
    assert done.stdout == "set()\n"
