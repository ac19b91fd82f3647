"""Check values against the schemas of config/schemas/, and explain the first mistake to the user."""

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import InputError
from common.files import CHECKOUT, load_yaml
from common.text import alternatives

if TYPE_CHECKING:
    from jsonschema import ValidationError

SCHEMAS = CHECKOUT / "config" / "schemas"
_ONE_WORD = re.compile(r"\^([a-z]+)\\Z")  # a pattern that only one text matches
FREQUENT_SCHEMAS = ("record",)  # schemas of files that are read by the thousand
TYPE_DESCRIPTIONS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "nothing",
}


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """Return the schema `config/schemas/<name>.schema.yaml`.

    A property that refers to another schema is replaced by the properties of that schema; its pattern
    properties are added.
    """
    loaded = load_yaml(SCHEMAS / f"{name}.schema.yaml")
    properties: dict[str, Any] = {}
    patterns: dict[str, Any] = dict(loaded.get("patternProperties", {}))
    for key, rules in loaded.get("properties", {}).items():
        reference = rules.get("$ref", "") if isinstance(rules, dict) else ""
        if reference.endswith(".schema.yaml"):
            referred = schema(reference.removesuffix(".schema.yaml"))
            properties |= referred["properties"]
            patterns |= referred.get("patternProperties", {})
        else:
            properties[key] = rules
    if patterns:
        loaded = {**loaded, "patternProperties": patterns}
    return {**loaded, "properties": properties} if properties else loaded


def column_rules(name: str, columns: Iterable[str]) -> dict[str, Any]:
    """Return the rules of a table's columns by name: all columns of the schema `name`, in its order.

    They are followed by those of `columns` that match only a pattern of the schema, such as users' factors.
    """
    table_schema = schema(name)
    matching = {
        column: rules
        for column in columns
        for pattern, rules in table_schema.get("patternProperties", {}).items()
        if column not in table_schema["properties"] and re.search(pattern, column)
    }
    return {**table_schema["properties"], **matching}


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: Any, value: Any) -> bool:
    return _is_integer(_, value) or (isinstance(value, float) and math.isfinite(value))


@functools.cache
def _validator_class() -> Any:
    """Return a class of validators for Python's values.

    JSON Schema accepts 2.0 as an integer; this class does not, and refuses NaN and infinity as numbers.
    """
    import jsonschema  # Importing it takes 50 ms.

    draft = jsonschema.Draft202012Validator
    types = draft.TYPE_CHECKER.redefine("integer", _is_integer).redefine("number", _is_number)
    return jsonschema.validators.extend(draft, type_checker=types)


@functools.cache
def _validator(name: str) -> Any:
    return _validator_class()(schema(name))


def _first_error(validator: Any, value: Any) -> "ValidationError | None":
    from jsonschema.exceptions import best_match

    return best_match(validator.iter_errors(value))


@functools.cache
def _fast_validator(name: str) -> Callable[[Any], bool]:
    """Return a function that checks in microseconds whether a value matches a schema.

    A campaign can have tens of thousands of records.
    """
    import fastjsonschema

    compiled = fastjsonschema.compile({**schema(name), "$schema": "http://json-schema.org/draft-07/schema#"})

    def is_valid(value: Any) -> bool:
        try:
            compiled(value)
        except fastjsonschema.JsonSchemaException:
            return False
        return True

    return is_valid


def check(value: Any, name: str, file: Path) -> None:
    """Raise an InputError with file, key and expected value if `value` breaks the schema `name`."""
    if name in FREQUENT_SCHEMAS and _fast_validator(name)(value):
        return
    error = _first_error(_validator(name), value)
    if error is not None:
        raise _input_error(error, value, file)


def check_value(value: Any, rules: Mapping[str, Any], key: str, file: Path) -> None:
    """Raise an InputError if `value`, at the dotted `key` of `file`, breaks the JSON schema `rules`."""
    error = _first_error(_validator_class()(rules), value)
    if error is not None:
        raise _input_error(error, value, file, key)


def _input_error(error: "ValidationError", content: Any, file: Path, above: str = "") -> InputError:
    """Return the InputError for a value in `content`, whose dotted key in the file is `above`."""
    path = list(error.absolute_path)
    # In a list of plain values, the key is that of the list, and the problem names the entry.
    is_entry = path and isinstance(path[-1], int) and not isinstance(error.instance, dict | list)
    last = path.pop() if is_entry else 0
    key = ".".join([above] * bool(above) + [str(part) for part in path])
    instance: Any = error.instance
    siblings: Any = functools.reduce(operator.getitem, path, content)
    is_alone = len(path) == len(error.absolute_path) or len(siblings) == 1
    value = _short_repr(instance) if is_alone else f"value {int(last) + 1}, {_short_repr(instance)}"
    code, problem, fields = _broken_rule(error, value)
    key = ".".join(filter(None, [key, fields.pop("below", "")]))
    return InputError(code, problem, file=file, key=key, **{"got": instance, **fields})


def _broken_rule(error: "ValidationError", value: str) -> tuple[str, str, dict[str, Any]]:
    """Return code, problem and other fields of an InputError about the first broken rule.

    The field `below` is the key inside the value that the error is about.

    Args:
        error: The error of jsonschema.
        value: The value as the problem shows it.
    """
    instance: Any = error.instance
    rule: Any = error.validator_value
    parent: Any = error.schema
    match error.validator:
        case "additionalProperties":
            allowed = list(parent.get("properties", {}))
            extra = min(set(instance) - set(allowed))
            fields = {"below": extra, "got": extra, **alternatives(extra, sorted(allowed))}
            return "unknown-key", "unknown key", fields
        case "required":
            missing = next(name for name in rule if name not in instance)
            fields = {"below": missing, "got": None, "expected": _describe_property(parent, missing)}
            return "missing-key", "is missing", fields
        case "enum":
            fields = {**alternatives(instance, rule), "expected": list(rule)}
            return "not-one-of", f"{value} is not allowed", fields
        case "type":
            return _wrong_type(instance, value, parent, [rule] if isinstance(rule, str) else rule)
        case "anyOf":
            expected = parent.get("description", "something else")
            return "bad-value", f"{value} is not right", {"expected": expected}
        case "uniqueItems":
            twice = next(x for i, x in enumerate(instance) if x in instance[:i])
            fields = {"got": twice, "hint": "name each value once"}
            return "duplicate", f"{_short_repr(twice)} occurs twice", fields
        case "minItems" | "maxItems" | "minProperties":
            code = "too-many" if error.validator == "maxItems" else "too-few"
            expected = _describe_count(parent, error.validator, rule)
            return code, _count_entries(len(instance)), {"got": len(instance), "expected": expected}
        case "minimum" | "exclusiveMinimum":
            limit = "more than" if error.validator == "exclusiveMinimum" else "at least"
            return "out-of-range", f"{value} is too small", {"expected": f"{limit} {rule}"}
        case "maximum" | "exclusiveMaximum":
            limit = "less than" if error.validator == "exclusiveMaximum" else "at most"
            return "out-of-range", f"{value} is too large", {"expected": f"{limit} {rule}"}
        case "maxLength":
            return "too-long", f"{value} is too long", {"expected": f"at most {rule} characters"}
        case "pattern":
            word = _ONE_WORD.fullmatch(rule)
            fields = alternatives(instance, word.groups()) if word else {}
            fields["expected"] = parent.get("description", rule)
            return "bad-pattern", f"{value} does not look right", fields
    return "bad-value", " ".join(error.message.split()), {}


def _wrong_type(
    instance: Any, value: str, parent: Mapping[str, Any], rule: Sequence[str]
) -> tuple[str, str, dict[str, Any]]:
    """Return code, problem and other fields for a value that has none of the types of `rule`."""
    types = " or ".join(TYPE_DESCRIPTIONS[name] for name in rule)
    meaning = f": {parent['description']}" if "pattern" in parent and "description" in parent else ""
    if "object" in rule and parent.get("properties"):
        meaning = f": {', '.join(parent['properties'])}"
    if instance is None:
        return "wrong-type", "is empty", {"expected": f"{types}{meaning}"}
    if "%" in parent.get("pattern", "") and _is_number(None, instance):
        return "wrong-type", f"{value} has no %", {"expected": parent.get("description", types)}
    quotes = {"hint": "put it in quotes"} if "string" in rule and isinstance(instance, (int, float)) else {}
    return "wrong-type", f"{value} is not right", {"expected": f"{types}{meaning}", **quotes}


def _count_entries(count: int) -> str:
    return "is empty" if count == 0 else f"has {count} entr{'y' if count == 1 else 'ies'}"


def _describe_count(parent: Mapping[str, Any], validator: str, rule: int) -> str:
    """Return the allowed number of entries, with their meaning if the number is fixed."""
    if validator != "minProperties" and parent.get("minItems") == parent.get("maxItems"):
        return f"{rule}: {parent.get('description', 'values')}"
    return f"at {'most' if validator == 'maxItems' else 'least'} {rule}"


def _describe_property(parent: Mapping[str, Any], name: str) -> str:
    description: str = parent.get("properties", {}).get(name, {}).get("description", "a value")
    return description.rstrip(".")


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
