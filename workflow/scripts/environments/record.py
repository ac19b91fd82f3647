"""Types of environment.json, the record of a built environment, which runs and later builds read."""

from typing import Any, NotRequired, TypedDict


class PythonRecord(TypedDict):
    """The environment's interpreter, with its ABI and platform, such as cp311-linux_x86_64."""

    version: str
    abi: str
    executable: str


class ImageRecord(TypedDict):
    """An image; `written` and `source` have file signatures, which reveal later changes."""

    path: str
    sha256: str
    written: Any
    source: dict[str, Any] | None
    base: str
    made_by: str


class InstalledRecord(TypedDict):
    """A site's installation at the time of its test: its program, packages and modules."""

    executable: str
    written: Any
    path: list[str]
    distributions: Any
    modules: NotRequired[list[str]]
    absent: NotRequired[list[str]]


class RealizedEnvironment(TypedDict):
    """The part of environment.json that `realize` of a deployment returns."""

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
