"""Commands behind the setup lines of a site."""

from collections.abc import Mapping, Sequence


def setup_script(setup: Sequence[str], last: str) -> str:
    """The setup lines, each on its own so that none can hide another's failure, then `last`."""
    return "\n".join([*(f"{{ {line}\n}} || exit 1" for line in setup), last])


def shell_command(
    setup: Sequence[str], identity: str, variables: Mapping[str, str], command: Sequence[str]
) -> list[str]:
    """`command` behind the setup lines, with `variables` set; `identity`: assignments that the shell expands.

    A login shell where there are setup lines, since `module` is defined by its start-up files.
    """
    script = setup_script(setup, f'exec env -u PYTHONHOME {identity} "$@"')
    assignments = [f"{name}={value}" for name, value in variables.items()]
    return ["bash", "-lc" if setup else "-c", script, "ringside", *assignments, *command]
