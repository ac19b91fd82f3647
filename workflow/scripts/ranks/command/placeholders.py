"""Fill placeholders of a command line with numbers and words.

`{nodes}` stands for a value, `{ranks // tp}` for a number computed from several values. `{{` and `}}` stand
for braces. A shell's `${NAME}` stays unchanged.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping

Value = str | int | float
_PLACEHOLDER = re.compile(r"\{\{|\}\}|(?<!\$)\{([^{}]*)\}")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class PlaceholderError(ValueError):
    """A placeholder that cannot be read or filled; `placeholder` is its text."""

    def __init__(self, placeholder: str, problem: str) -> None:
        super().__init__(f"{{{placeholder}}} {problem}")
        self.placeholder, self.problem = placeholder, problem


def placeholders(text: str) -> Iterator[str]:
    """Yield the expressions in braces."""
    for match in _PLACEHOLDER.finditer(text):
        if match[1] is not None:
            yield match[1]


def names(text: str) -> set[str]:
    """Return the names in all placeholders of a text.

    Raises:
        PlaceholderError: If one is not an expression of names, numbers and + - * / // %.
    """
    return {name for expression in placeholders(text) for name in expression_names(expression)}


def expression_names(expression: str) -> set[str]:
    """Return the names in one expression; see `names`."""
    return {node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)}


def fill(text: str, values: Mapping[str, Value], quoted: bool = True) -> str:
    """Return the text with its placeholders filled.

    Args:
        text: The text.
        values: Value of each name.
        quoted: Whether words are quoted for a shell if they need it.

    Raises:
        PlaceholderError: If a name has no value, or a number cannot be computed.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        value = evaluate(match[1], values)
        return shlex.quote(value) if quoted and isinstance(value, str) else str(value)

    return _PLACEHOLDER.sub(replaced, text)


def evaluate(expression: str, values: Mapping[str, Value]) -> Value:
    """Return the value of an expression; a number without a fraction becomes an int.

    Raises:
        PlaceholderError: If a name has no value, or the number cannot be computed.
    """
    value = _value(_parse(expression), expression, values)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _parse(expression: str) -> ast.expr:
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise PlaceholderError(expression, "is not an expression") from None
    for node in ast.walk(tree):
        is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        if not (isinstance(node, ast.BinOp | ast.Name | ast.Load | ast.operator) or is_number):
            raise PlaceholderError(expression, "is not an expression of names, numbers and + - * / // %")
        if isinstance(node, ast.operator) and type(node) not in _OPERATORS:
            raise PlaceholderError(expression, "has an operator other than + - * / // %")
    return tree


def _value(tree: ast.expr, expression: str, values: Mapping[str, Value]) -> Value:
    if isinstance(tree, ast.Name):
        if tree.id not in values:
            raise PlaceholderError(expression, f"has no value: {tree.id} is unknown")
        return values[tree.id]
    if isinstance(tree, ast.BinOp):
        left, right = (_value(part, expression, values) for part in (tree.left, tree.right))
        if isinstance(left, str) or isinstance(right, str):
            raise PlaceholderError(expression, "computes with a word")
        try:
            return _OPERATORS[type(tree.op)](left, right)
        except ArithmeticError as error:
            raise PlaceholderError(expression, f"has no value: {error}") from None
    number: float = ast.literal_eval(tree)
    return number
