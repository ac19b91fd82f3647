"""Run commands behind the setup lines of a site."""

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
# Prefix of a marker file in a folder; a node without this file has another folder at this path.
SEEN_BY = ".seen-by-"
UNSEEN = "not-seen"  # the code of a node that does not see a path
UNSEEN_STATUS = 79  # of node-check, and of what ends because of it
_UNSEEN_LINE = re.compile(
    r"^(?:ringside|lost): node (\S+) does not see (.+?)(?: \(job \S+ on \S+\))?$", re.MULTILINE
)


Answer = TypeVar("Answer")


class Unanswered(Exception):
    """A client of a scheduler failed or did not answer; the message has the details."""


def capture(command: Sequence[str], check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its status and its output as text; it reads nothing.

    `options` are those of subprocess.run, such as env, cwd and timeout.
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


def query_with_retries(question: Callable[[], Answer], tries: int = 3) -> Answer:
    """Return the answer of `question`, which is asked again, 2 s later, when it raises Unanswered.

    Raises:
        Unanswered: If all `tries` fail.
    """
    for _ in range(tries - 1):
        try:
            return question()
        except Unanswered:
            time.sleep(2)
    return question()


def setup_script(setup: Sequence[str], last: str) -> str:
    """Return the setup lines, each on its own so that none hides another's failure, then `last`."""
    return "\n".join([*(f"{{ {line}\n}} || exit 1" for line in setup), last])


def shell_command(setup: Sequence[str], variables: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """Return `command` behind the setup lines and with these variables.

    With setup lines it runs in a login shell, since `module` is defined by its start-up files.
    """
    script = setup_script(setup, 'exec env -u PYTHONHOME "$@"')
    assignments = [f"{name}={value}" for name, value in variables.items()]
    return ["bash", "-lc" if setup else "-c", script, "ringside", *assignments, *command]


@dataclass(frozen=True)
class Program:
    """What every rank runs.

    Attributes:
        command: The program and its arguments.
        variables: A file of `export_lines`, which the node's shell reads. Values may be secrets: on a command
            line every user of the node would see them, and a scheduler would keep them with its job.
        paths: What a node has to see.
    """

    command: Sequence[str]
    variables: Path
    paths: Sequence[str] = ()

    def command_after(self, setup: Sequence[str], identity: str) -> list[str]:
        """Return the command after the setup lines, the variables and the assignments `identity`."""
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
    """Return lines by which a shell sets and exports `variables`."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def check_node(paths: Sequence[str]) -> list[str]:
    """Return the command that ends with UNSEEN_STATUS and a line on a node that lacks one of `paths`."""
    return ["sh", "-c", NODE_CHECK.read_text(encoding="utf-8"), "node-check", *paths]


def check_node_by_pipe(paths: Sequence[str]) -> str:
    """Return a shell line that does what `check_node` does, with no character that quoting changes."""
    text = base64.b64encode(NODE_CHECK.read_bytes()).decode("ascii")
    return f"echo {text} | base64 -d | sh -s -- {shlex.join(paths)}"


def find_unseen_path(text: str) -> Note | None:
    """Return which node does not see which path, as `check_node` reported it in a log.

    None if it reported nothing.
    """
    match = _UNSEEN_LINE.search(text)
    return unseen_path_note(match[1], match[2]) if match else None


def unseen_path_note(node: str, path: str) -> Note:
    """Return the note that a node does not see a path; for a mark, the folder that contains it."""
    path = path.partition(f"/{SEEN_BY}")[0]
    return Note(UNSEEN, f"node {node} does not see {path}", node=node, path=path)
