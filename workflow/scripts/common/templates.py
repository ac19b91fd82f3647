"""Render Jinja templates, which lie next to the code, to plain text such as Markdown."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: Path, **values: Any) -> str:
    """Return the text of a template.

    Raises:
        jinja2.UndefinedError: If the template uses a name that `values` lack.
    """
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (the text is not HTML)
    )
    return environment.get_template(template.name).render(values)
