"""What breaks a schema is an error whose code says which rule it breaks, in one line."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.schemas import check_value

NAME = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5, "description": "letters a to z"}
SHARE = {"type": "string", "pattern": r"^\d+ ?%$", "description": "a share, as 5 %"}
LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3, "uniqueItems": True}
PAIR = {"type": "array", "minItems": 2, "maxItems": 2, "description": "height and width"}
KEYS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["nodes"],
    "properties": {"nodes": {"type": "integer", "description": "number of nodes."}, "names": {"items": NAME}},
}
LIMITS = {"type": "number", "minimum": 1, "exclusiveMaximum": 9}
OPEN = {"type": "number", "exclusiveMinimum": 0, "maximum": 4}
EITHER = {"anyOf": [{"const": "auto"}, {"type": "integer"}], "description": "cores, or auto"}

Case = tuple[dict[str, Any], Any, str, str, dict[str, Any], str]
CASES: list[Case] = [
    (KEYS, {"nodes": 1, "name": 2}, "unknown-key", "key.name", {"got": "name", "suggestion": "names"},
     "key.name: unknown key; did you mean 'names'?"),
    (KEYS, {"nodes": 1, "x": 2}, "unknown-key", "key.x", {"got": "x", "expected": ["names", "nodes"]},
     "key.x: unknown key; expected one of names, nodes"),
    (KEYS, {}, "missing-key", "key.nodes", {"got": None, "expected": "number of nodes"},
     "key.nodes: is missing; expected number of nodes"),
    (KEYS, {"nodes": 1, "names": ["A"]}, "bad-pattern", "key.names", {"got": "A"},
     "key.names: 'A' does not look right; expected letters a to z"),
    (KEYS, {"nodes": 1, "names": ["a", "B"]}, "bad-pattern", "key.names", {"got": "B"},
     "key.names: value 2, 'B' does not look right; expected letters a to z"),
    (KEYS, {"nodes": 1, "names": [*["a"] * 10, "B"]}, "bad-pattern", "key.names", {"got": "B"},
     "key.names: value 11, 'B' does not look right; expected letters a to z"),
    ({"type": "string", "pattern": "^largest\\Z"}, "largets", "bad-pattern", "key",
     {"got": "largets", "suggestion": "largest"}, "key: 'largets' does not look right; expected ^largest\\Z; did you mean 'largest'?"),
    ({"enum": ["local", "slurm"]}, "slrum", "not-one-of", "key",
     {"got": "slrum", "expected": ["local", "slurm"], "suggestion": "slurm"},
     "key: 'slrum' is not allowed; expected one of local, slurm; did you mean 'slurm'?"),
    ({"enum": [3, 4]}, 5, "not-one-of", "key", {"got": 5, "expected": [3, 4]},
     "key: 5 is not allowed; expected one of 3, 4"),
    ({"type": ["integer", "object"]}, "three", "wrong-type", "key", {"got": "three"},
     "key: 'three' is not right; expected a whole number or keys with values"),
    ({"type": "object", "properties": {"amount": {}, "currency": {}}}, 3, "wrong-type", "key", {"got": 3},
     "key: 3 is not right; expected keys with values: amount, currency"),
    (NAME, 3, "wrong-type", "key", {"got": 3}, (
        "key: 3 is not right; expected text: letters a to z; put it in quotes"
    )),
    (LIMITS, None, "wrong-type", "key", {"got": None}, "key: is empty; expected a number"),
    (SHARE, 0.05, "wrong-type", "key", {"got": 0.05}, "key: 0.05 has no %; expected a share, as 5 %"),
    (LIMITS, True, "wrong-type", "key", {"got": True}, "key: True is not right; expected a number"),
    (EITHER, "all", "bad-value", "key", {"got": "all"}, "key: 'all' is not right; expected cores, or auto"),
    (LIST, [1, 1], "duplicate", "key", {"got": 1}, "key: 1 occurs twice; name each value once"),
    (LIST, [], "too-few", "key", {"got": 0}, "key: is empty; expected at least 2"),
    (LIST, [1], "too-few", "key", {"got": 1}, "key: has 1 entry; expected at least 2"),
    (LIST, [1, 2, 3, 4], "too-many", "key", {"got": 4}, "key: has 4 entries; expected at most 3"),
    (PAIR, [1], "too-few", "key", {"got": 1}, "key: has 1 entry; expected 2: height and width"),
    ({"minProperties": 1}, {}, "too-few", "key", {"got": 0}, "key: is empty; expected at least 1"),
    (LIMITS, 0, "out-of-range", "key", {"got": 0}, "key: 0 is too small; expected at least 1"),
    (LIMITS, 9, "out-of-range", "key", {"got": 9}, "key: 9 is too large; expected less than 9"),
    (OPEN, 0, "out-of-range", "key", {"got": 0}, "key: 0 is too small; expected more than 0"),
    (OPEN, 5, "out-of-range", "key", {"got": 5}, "key: 5 is too large; expected at most 4"),
    (NAME, "abcdef", "too-long", "key", {"got": "abcdef"}, (
        "key: 'abcdef' is too long; expected at most 5 characters"
    )),
    ({"const": 1}, 2, "bad-value", "key", {"got": 2}, "key: 1 was expected"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "value", "code", "key", "fields", "line"), CASES)
def test_broken_rule_gives_code_key_and_one_line(
    rules: dict[str, Any], value: object, code: str, key: str, fields: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError) as refused:
        check_value(value, rules, "key", Path("s.yaml"))
    error = refused.value
    assert (error.code, error.file, error.key) == (code, "s.yaml", key)
    assert {name: getattr(error, name) for name in fields} == fields
    assert str(error) == f"s.yaml: {line}"


def test_long_value_is_cut_in_the_line_and_whole_in_the_field() -> None:
    with pytest.raises(InputError) as refused:
        check_value("x" * 500, NAME, "key", Path("s.yaml"))
    assert refused.value.got == "x" * 500 and len(str(refused.value)) < 150
