"""Parse command lines of `ringside predict`."""

from unittest import mock

import typer

from ringside.app import app
from ringside.commands import to_input_error


def parse_question(*options):
    """Return the question that these options ask; values after the first repeat their option."""
    repeated = []
    for text in options:
        flag = next((part for part in reversed(repeated) if part.startswith("--")), None)
        if not text.startswith("--") and repeated and repeated[-1] != flag:
            repeated.append(flag)
        repeated.append(text)
    command = typer.main.get_command(app).commands["predict"]
    try:
        with (
            mock.patch("ringside.predicting.show_projection") as show_projection,
            command.make_context("predict", repeated) as context,
        ):
            command.invoke(context)
    except typer.TyperException as error:
        raise to_input_error(error) from None
    return show_projection.call_args.args[0]
