"""Render Jinja templates that lie beside the code and become plain text, such as Markdown."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: Path, **values: Any) -> str:
    """Return the text of a template; a name that it uses and `values` lack is an error."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the text is no HTML
    )
    return environment.get_template(template.name).render(values)
