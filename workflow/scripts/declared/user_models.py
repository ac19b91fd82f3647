"""Read and check a user-supplied PyTorch module, config/models/NAME.yaml, which a study names as a model.

Ranks build the module from its Python file. Planning cannot run that file, since the controller has no
PyTorch. So the graph of such a model is a single operator, and its weights and operations are unknown until
ranks report them.
"""

import ast
import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from common.errors import InputError
from common.files import CHECKOUT, digest_file, display_path
from common.keys import Keys, Line, Maybe, Rules, key, load, optional, parse
from common.text import alternatives
from declared.configuration import NAME, check_in_checkout
from models.graph import MODULE, Graph, Operator, Shape
from models.named import IMAGES, TOKENS, check_sample_kind, models, sample_kind

USER_MODELS = CHECKOUT / "config" / "models"
# Names in braces that an argument may have, by kind of samples.
SIZES = {"images": ("height", "width", "channels"), "texts": ("length",), "tokens": ("length",)}
PLACEHOLDER = re.compile(r"\{(\w+)\}")
Word = Annotated[str, Rules(pattern=NAME)]
Identifier = Annotated[str, Rules(pattern=r"^[A-Za-z_]\w*\Z")]


@dataclass(frozen=True, kw_only=True)
class UserModelKeys(Keys):
    """The keys of config/models/NAME.yaml, a PyTorch module of your own that a study names as a model."""

    title: Maybe[Line] = optional("title of the model; default: its name")
    file: str = key("Python file that defines the module, relative to the checkout", min_length=1)
    class_name: Identifier = key(
        "class of that file, a torch.nn.Module, or a function that returns one", alias="class"
    )
    inputs: Literal["images", "texts", "tokens"] = key(
        "input and output of its forward method. images: float32 [N, channels, height, width], "
        "normalized; texts: int64 [N, length]; both for logits [N, classes]. tokens: int64 [N, length], for "
        "logits [N, length, vocabulary] of the next token at each position"
    )
    arguments: dict[Identifier, Any] = key(
        "named arguments of the class. A text in braces stands for a number of the data set: {classes}; for "
        "images {height}, {width} and {channels}; for texts and tokens {length} and {vocabulary}",
        default_factory=dict,
    )
    blocks: tuple[Identifier, ...] = key(
        "classes whose instances FSDP gathers as a unit each, such as [Block]; without any, FSDP gathers the "
        "whole model at once",
        default=(),
    )
    files: tuple[str, ...] = key(
        "further files of the checkout that it imports or reads; like that of `file`, their SHA-256 are "
        "part of the keys of its runs",
        default=(),
    )


@dataclass(frozen=True, kw_only=True)
class UserModel(UserModelKeys):
    """A user-supplied PyTorch module; `declaration` is its YAML file, `name` the name of that file."""

    name: str
    declaration: Path

    @property
    def sources(self) -> list[Path]:
        """The files that define the model."""
        return [CHECKOUT / file for file in (self.file, *self.files)]

    def source_digests(self) -> dict[str, str]:
        """Return the SHA-256 of each source, by its path in the checkout."""
        return {str(path.relative_to(CHECKOUT)): digest_file(path) for path in self.sources}

    def graph(self, shape: Shape, classes: int, vocabulary: int | None, targets: str) -> Graph:
        """Return the model as a graph of one operator; the arguments are those of `models.named.graph`.

        Raises:
            ValueError: If it takes other samples, or an argument names an unknown number.
        """
        kind = sample_kind(vocabulary, targets)
        try:
            check_sample_kind(self.inputs, kind)
            sizes = dict(zip(SIZES[kind], shape, strict=True)) | {"classes": classes}
            if vocabulary is not None:
                sizes["vocabulary"] = vocabulary
            arguments = dict(self._arguments(sizes))
        except ValueError as error:
            raise ValueError(f"model {self.name} cannot be built: {error}") from None
        settings = {
            "file": self.file,
            "class": self.class_name,
            "arguments": arguments,
            "blocks": list(self.blocks),
        }
        logits = (*shape, classes) if kind == TOKENS else (classes,)
        samples = Operator("input", "input", (), shape, {} if kind == IMAGES else {"vocabulary": vocabulary})
        module = Operator(MODULE, MODULE, ("input",), logits, settings)
        return Graph(self.name, "glorot", (samples, module))  # No weight is drawn: the module has its own.

    def _arguments(self, sizes: dict[str, int]) -> Iterator[tuple[str, Any]]:
        for name, value in self.arguments.items():
            try:
                yield name, _with_sizes(value, sizes)
            except KeyError as unknown:
                names = ", ".join(f"{{{size}}}" for size in sizes)
                problem = f"its argument {name} has {{{unknown.args[0]}}}; these samples have {names}"
                raise ValueError(problem) from None


def _with_sizes(value: Any, sizes: dict[str, int]) -> Any:
    """Return a value with numbers of the data set for names in braces, also in lists and mappings."""
    if isinstance(value, list):
        return [_with_sizes(part, sizes) for part in value]
    if isinstance(value, dict):
        return {name: _with_sizes(part, sizes) for name, part in value.items()}
    if isinstance(value, str) and (placeholder := PLACEHOLDER.fullmatch(value)):
        return sizes[placeholder[1]]
    return value


@functools.cache
def user_model_names() -> tuple[str, ...]:
    """Return the names of all user-supplied PyTorch modules."""
    return tuple(sorted(path.stem for path in USER_MODELS.glob("*.yaml")))


def is_user_model(name: str) -> bool:
    """Return whether a model is a user-supplied PyTorch module."""
    return name in user_model_names()


@functools.cache
def load_user_model(name: str) -> UserModel:
    """Read and check config/models/<name>.yaml.

    Raises:
        InputError: If it is wrong, or its Python file does not define the class.
    """
    declaration = USER_MODELS / f"{name}.yaml"
    parse(Word, name, declaration, "its name")
    if name in models():
        problem = f"{name} is a model of Ringside"
        hint = "give the file another name"
        raise InputError("reserved-name", problem, file=declaration, got=name, hint=hint)
    written = load(UserModelKeys, declaration)
    check_in_checkout(written.file, declaration, "file")
    for i, path in enumerate(written.files):
        check_in_checkout(path, declaration, f"files.{i}")
    _check_arguments(written, declaration)
    _check_class(written, declaration)
    return UserModel(name=name, declaration=declaration, **vars(written))


def user_model_titles() -> dict[str, str]:
    """Return title and declaration of each user-supplied PyTorch module, by name.

    Raises:
        InputError: If one of them is wrong.
    """
    loaded = map(load_user_model, user_model_names())
    return {
        model.name: f"{model.title or model.name} ({display_path(model.declaration)})" for model in loaded
    }


def _check_arguments(written: UserModelKeys, declaration: Path) -> None:
    """Raise InputError if an argument has a number that JSON cannot express: ranks read arguments as JSON."""
    for name, value in written.arguments.items():
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            problem = f"{value} is not finite"
            expected = "a number, or a text that the class converts"
            raise InputError(
                "wrong-type", problem, file=declaration, key=f"arguments.{name}", got=value, expected=expected
            ) from None


def _check_class(written: UserModelKeys, declaration: Path) -> None:
    """Raise InputError if the Python file does not define or import the class."""
    try:
        code = ast.parse((CHECKOUT / written.file).read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = f"is not valid Python: {error or type(error).__name__}"
        raise InputError("broken-file", problem, file=written.file, got=str(error)) from None
    names = list(_defined_names(code.body))
    if not {written.class_name, "*"} & set(names):
        raise InputError(
            "unknown-name",
            f"{written.file} does not define {written.class_name}",
            file=declaration,
            key="class",
            got=written.class_name,
            **alternatives(written.class_name, names),
        )


def _defined_names(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module define or import, `*` for all names of another module."""
    for statement in statements:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If() | ast.Try() | ast.With():
                children = ast.iter_child_nodes(statement)
                bodies = (part.body if isinstance(part, ast.ExceptHandler) else [part] for part in children)
                yield from _defined_names(
                    part for body in bodies for part in body if isinstance(part, ast.stmt)
                )
