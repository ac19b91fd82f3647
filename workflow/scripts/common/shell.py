"""Run commands, after a site's setup lines where needed, and check that nodes can access their paths."""

import base64
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common.files import CHECKOUT
from common.notes import Note

NODE_CHECK = CHECKOUT / "profiles" / "node-check"
# Prefix of a marker file in a folder: a node without the file has a different folder at this path.
SEEN_BY = ".seen-by-"
INACCESSIBLE = "inaccessible"  # code of the note that a node cannot access a path
INACCESSIBLE_STATUS = 79  # exit status of node-check, and of programs that end because of it
# The line of node-check in a log, or the form in which unfinished.txt keeps it ("lost: ... (job ...)").
_INACCESSIBLE_LINE = re.compile(
    r"^(?:ringside|lost): node (\S+) cannot access (.+?)(?: \(job \S+ on \S+\))?$", re.MULTILINE
)
T = TypeVar("T")


class Unanswered(Exception):
    """A scheduler's client program failed or did not answer; the message has the details."""


def capture(command: Sequence[str], check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end without input, and return its status and its output as text.

    Args:
        command: The program and its arguments.
        check: Whether to raise CalledProcessError for a status other than 0.
        options: Options of subprocess.run, such as env, cwd and timeout.
    """
    return subprocess.run(
        command,
        check=check,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        **options,
    )


def query_with_retries(query: Callable[[], T], tries: int = 3) -> T:
    """Return the result of `query`; after an Unanswered, call it again 2 s later.

    Raises:
        Unanswered: If all `tries` fail.
    """
    for _ in range(tries - 1):
        try:
            return query()
        except Unanswered:
            time.sleep(2)
    return query()


def setup_script(setup: Sequence[str], last: str) -> str:
    """Return a script that ends with status 1 if any setup line fails, and otherwise runs `last`."""
    return "\n".join([*(f"{{ {line}\n}} || exit 1" for line in setup), last])


def shell_command(setup: Sequence[str], variables: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return a command line that runs `command` after the setup lines, with these variables.

    Setup lines run in a login shell, because its start-up files define `module`.
    """
    script = setup_script(setup, 'exec env -u PYTHONHOME "$@"')
    assignments = [f"{name}={value}" for name, value in variables.items()]
    return ["bash", "-lc" if setup else "-c", script, "ringside", *assignments, *command]


@dataclass(frozen=True)
class Program:
    """The program that every rank runs.

    Attributes:
        command: The program and its arguments.
        variables: A file with `export_lines`, which the node's shell reads. Values can be secrets: on a
            command line, every user of the node would see them, and a scheduler would store them with its
            job.
        paths: Paths that every node has to access.
    """

    command: Sequence[str]
    variables: Path
    paths: Sequence[str] = ()

    def command_after(self, setup: Sequence[str], identity: str) -> list[str]:
        """Return a command line that runs the program after the setup lines, with its variables.

        Args:
            setup: The site's setup lines.
            identity: Assignments in the shell's syntax that tell a rank which one it is; "" for none.
        """
        lines = [
            "unset PYTHONHOME",
            '. "$1" || exit 1',
            "shift",
            f"export {identity}" if identity else "",
            'exec "$@"',
        ]
        script = setup_script(setup, "\n".join(filter(None, lines)))
        shell = ["bash", "-lc" if setup else "-c", script, "ringside", str(self.variables), *self.command]
        return [*check_node(self.paths), "--", *shell] if self.paths else shell


def export_lines(variables: Mapping[str, str]) -> str:
    """Return lines of a shell script that export `variables`."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def check_node(paths: Sequence[str]) -> list[str]:
    """Return a command that prints a line and ends with INACCESSIBLE_STATUS if a path is inaccessible."""
    return ["sh", "-c", NODE_CHECK.read_text(encoding="utf-8"), "node-check", *paths]


def check_node_by_pipe(paths: Sequence[str]) -> str:
    """Return a shell line that does what `check_node` does; its script is base64 and needs no quotes."""
    text = base64.b64encode(NODE_CHECK.read_bytes()).decode("ascii")
    return f"echo {text} | base64 -d | sh -s -- {shlex.join(paths)}"


def find_inaccessible_path(text: str) -> Note | None:
    """Return the note on a node that cannot access a path, from what `check_node` wrote to a log, or None."""
    match = _INACCESSIBLE_LINE.search(text)
    return inaccessible_path_note(match[1], match[2]) if match else None


def inaccessible_path_note(node: str, path: str) -> Note:
    """Return the note that a node cannot access a path; a marker file stands for its folder."""
    path = path.partition(f"/{SEEN_BY}")[0]
    return Note(INACCESSIBLE, f"node {node} cannot access {path}", node=node, path=path)
