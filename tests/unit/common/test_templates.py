"""Templates become plain text, and lack nothing in silence."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from common.templates import render


def test_template_is_text_and_refuses_an_unknown_name(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% if a %}\n{{ a }} & {{ b }}\n{% endif %}\n")
    assert render(template, a="<x>", b=1) == "<x> & 1\n"
    with pytest.raises(UndefinedError, match="'b'"):
        render(template, a="<x>")
