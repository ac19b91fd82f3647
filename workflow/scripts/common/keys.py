"""Declare files that people write as dataclasses: each key's type, default, limits and meaning.

`key` declares a key. pydantic checks what a file holds and makes an instance of the class. If it refuses,
`common.schemas` finds the broken rule by the JSON schema that pydantic derives from the same class. The
classes are plain dataclasses: programs that only use their instances do not import pydantic.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args

from common.errors import InputError
from common.files import load_yaml
from common.renamed import rename_keys
from common.schemas import check_value

K = TypeVar("K")
T = TypeVar("T")
# The regular expressions are Python's: Rust's have neither \Z nor lookahead.
STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False, "regex_engine": "python-re"}


class Keys:
    """Base of dataclasses that a file fills: no other keys, no conversion of types, no NaN."""

    __pydantic_config__: ClassVar = STRICT


def key(meaning: str, *, default: Any = MISSING, default_factory: Any = MISSING, **rules: Any) -> Any:
    """Return the dataclass field of a key.

    Args:
        meaning: What the key says, for errors and the reference pages.
        default: The value of a key that is left out; without it the key is required.
        default_factory: Makes the default, if it can be changed.
        rules: Limits in pydantic's words: ge, gt, le, lt, min_length, max_length, pattern.
    """
    return field(default=default, default_factory=default_factory, metadata={"description": meaning, **rules})


def optional(meaning: str, **rules: Any) -> Any:
    """Return the dataclass field of an optional key; its default is None."""
    return key(meaning, default=None, **rules)


class Rules:
    """Limits of a part of a value, such as the entries of a list, in `Annotated`.

    Args:
        meaning: What the part says.
        unique: Whether repetitions in a list are refused.
        filled: Whether at least one of its optional keys is required.
        exact: Whether a whole number stays an int although the type is float.
        limits: In pydantic's words, as those of `key`.
    """

    def __init__(
        self,
        meaning: str = "",
        *,
        unique: bool = False,
        filled: bool = False,
        exact: bool = False,
        **limits: Any,
    ) -> None:
        self.limits, self.unique, self.filled, self.exact = limits, unique, filled, exact
        notes = {"description": meaning, "uniqueItems": unique, "minProperties": int(filled)}
        self.notes = {name: note for name, note in notes.items() if note}

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return pydantic's description of the value, with the limits."""
        from pydantic_core import core_schema

        described = {**handler(source), **self.limits}
        if self.unique:
            return core_schema.no_info_after_validator_function(_raise_if_repeated, described)
        if self.filled:
            return core_schema.no_info_after_validator_function(_raise_if_empty, described)
        if self.exact:
            return core_schema.no_info_wrap_validator_function(_keep_as_written, described)
        return described

    def __get_pydantic_json_schema__(self, described: Any, handler: Callable[[Any], Any]) -> Any:
        """Return the JSON schema of the value, with its meaning."""
        return {**handler(described), **self.notes}


def _keep_as_written(value: Any, check: Callable[[Any], Any]) -> Any:
    check(value)
    return value


def _raise_if_empty(instance: Any) -> Any:
    if all(value is None for value in vars(instance).values()):
        raise ValueError("it has no keys")
    return instance


def _raise_if_repeated(values: Any) -> Any:
    if any(value in values[:index] for index, value in enumerate(values)):
        raise ValueError("a value is there twice")
    return values


class _Absent:
    """Mark a key that can be left out (its value is then None), but cannot be null in the file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(source)["schema"]


@dataclass(frozen=True)
class ParsedFrom:
    """Mark a value that a file has in another form, with the type of that form and its conversion."""

    form: Any
    convert: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's description of the form, converted once it is right."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.convert, handler.generate_schema(self.form))


def as_pairs(entries: Mapping[K, T]) -> tuple[tuple[K, T], ...]:
    """Return the entries of a mapping as sorted pairs, which can be hashed."""
    return tuple(sorted(entries.items()))


class _FromMapping:
    """Mark pairs that are written as a mapping."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        name, value = get_args(get_args(source)[0])
        form = ParsedFrom(dict[name, value], as_pairs)  # type: ignore[valid-type]
        return form.__get_pydantic_core_schema__(source, handler)


Maybe = Annotated[T | None, _Absent()]
Pairs = Annotated[tuple[tuple[K, T], ...], _FromMapping()]
Unique = Annotated[T, Rules(unique=True)]
Line = Annotated[str, ParsedFrom(Annotated[str, Rules(pattern=r"\S")], lambda text: " ".join(text.split()))]


def load(kind: type[T], file: Path) -> T:
    """Return the content of a YAML file as an instance of `kind`.

    Raises:
        InputError: If it is wrong.
    """
    return parse(kind, load_yaml(file), file)


def parse(kind: type[T], value: Any, file: Path, above: str = "") -> T:
    """Return the content of `file` below the key `above` as an instance of `kind`.

    Older names of keys are replaced, with a hint on stderr (`common.renamed`).

    Raises:
        InputError: If it is wrong.
    """
    from pydantic import ValidationError

    try:
        return cast(T, _adapter(cast(Any, kind)).validate_json(json.dumps(value, default=str)))
    except ValidationError as error:
        rules = json_schema(cast(Any, kind))
        if (renamed := rename_keys(value, rules, file, above)) != value:
            return parse(kind, renamed, file, above)
        check_value(value, rules, above, file)
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(filter(None, [above, *map(str, first["loc"])]))
        raise InputError("broken-rule", first["msg"], file=file, key=place) from None


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind, config=None if is_dataclass(kind) else cast(Any, STRICT))


@functools.cache
def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a class, without references."""
    described = _adapter(kind).json_schema()
    return _simplify(described, described.get("$defs", {}))


def _simplify(rules: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return rules without references and titles.

    Alternatives that differ only in type become one list of types.
    """
    named = definitions.get(str(rules.get("$ref", "")).rpartition("/")[2], {})
    simplified = {
        name: rule for name, rule in {**named, **rules}.items() if name not in ("$ref", "$defs", "title")
    }
    if simplified.get("default") in (None, [], {}):  # An empty default only says that the key is optional.
        simplified.pop("default", None)
    if "const" in simplified:
        simplified["enum"] = [simplified.pop("const")]
    if "enum" in simplified:  # another type is another value, too
        simplified.pop("type", None)
    for pattern, entry in simplified.pop("patternProperties", {}).items():
        simplified |= {"propertyNames": {"pattern": pattern}, "additionalProperties": entry}
    for name in ("items", "additionalProperties"):
        if isinstance(simplified.get(name), dict):
            simplified[name] = _simplify(simplified[name], definitions)
    if "properties" in simplified:
        simplified["properties"] = {
            name: _simplify(subrules, definitions) for name, subrules in simplified["properties"].items()
        }
    if "anyOf" in simplified:
        alternatives = [_simplify(subrules, definitions) for subrules in simplified.pop("anyOf")]
        types = list(dict.fromkeys(alternative.get("type") for alternative in alternatives))
        if (
            len(types) < len(alternatives)
            or None in types
            or any("enum" in alternative for alternative in alternatives)
        ):
            return {"anyOf": alternatives, **simplified}
        if "number" in types and "integer" in types:
            types.remove("integer")
        simplified = {
            **{name: rule for alternative in alternatives for name, rule in alternative.items()},
            "type": types,
            **simplified,
        }
    # Of two broken rules the first one is reported: the type comes first.
    return dict(sorted(simplified.items(), key=lambda rule: rule[0] != "type"))
