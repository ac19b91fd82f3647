"""A program that make calls names itself as people call it."""

import importlib
import re

import pytest

from common.files import CHECKOUT

FOUND = re.findall(
    r"^([a-z-]+):[^\n]*\n\t@\$\(RINGSIDE\) ([a-z.]+)( [a-z]+)?", (CHECKOUT / "Makefile").read_text(), re.M
)

CALLED = [found for found in FOUND if found[0] != "figures"]  # which begins with what make unlock does


@pytest.mark.parametrize(("target", "module", "command"), CALLED)
def test_help_names_the_target(target: str, module: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(module).main([*command.split(), "--help"])
    assert capsys.readouterr().out.startswith(f"usage: make {target} ")


def test_there_are_such_programs() -> None:
    assert {"models", "doctor", "submit", "repeat", "cluster-up"} <= {target for target, _, _ in CALLED}
