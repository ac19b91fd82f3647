"""Types of environment.json, the record of a built environment, which runs and later builds read."""

from typing import Any, NotRequired, TypedDict


class PythonRecord(TypedDict):
    """The environment's interpreter, with its binary interface, such as cp311."""

    version: str
    abi: str
    executable: str


class ImageRecord(TypedDict):
    """An image; `written` and `source` are the marks by which a later change is noticed."""

    path: str
    sha256: str
    written: Any
    source: dict[str, Any] | None
    base: str
    made_by: str


class InstalledRecord(TypedDict):
    """What the site has installed, as it was tested: its program, packages and modules."""

    executable: str
    written: Any
    path: list[str]
    distributions: Any
    modules: NotRequired[list[str]]
    absent: NotRequired[list[str]]


class RealizedEnvironment(TypedDict):
    """The part of an environment's record that a deployment makes."""

    variables: dict[str, str]
    python: PythonRecord
    image: ImageRecord | None
    prefixes: list[str]
    packages: dict[str, str]
    wheels: dict[str, dict[str, str]]
    selftest: dict[str, Any]
    installed: NotRequired[InstalledRecord]
    setup: NotRequired[list[str]]


class BuiltEnvironment(RealizedEnvironment):
    """The content of environment.json."""

    name: str
    variant: str
    deployment: str
    digest: str
    parent: dict[str, str] | None
    seconds: dict[str, float]
