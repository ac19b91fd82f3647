"""Check that rules and programs use only the public API of Snakemake.

Public are its language, its handlers, its profiles, `snakemake.utils` and the packages snakemake-interface-*. Three things are
refused: importing a module of Snakemake, reading an attribute of its objects that begins with an underscore,
and assigning to an attribute of its objects. Its objects are recognized by their usual names (OBJECTS), also
as attributes (`self._workflow`).
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OBJECTS = {"workflow", "rules", "checkpoints", "dag", "job", "persistence"}
PACKAGE = "snakemake"
PUBLIC_MODULE = ["snakemake", ".", "utils"]
ASSIGNMENTS = {"=", "+=", "-=", "|=", "&="}
SOURCES = ("Snakefile", "workflow/Snakefile", "rules/*.smk", "workflow/scripts/**/*.py")


@dataclass(frozen=True)
class Finding:
    """A refused use of Snakemake in a line of a file."""

    line: int
    kind: str  # import, private or assignment
    text: str


def find(source: str) -> Iterator[Finding]:
    """Yield refused uses in the text of a module or a Snakefile, which have the same tokens."""
    tokens = [
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type != tokenize.NL
    ]
    words = [token.string for token in tokens]
    for number, token in enumerate(tokens):
        if token.type != tokenize.NAME or (number and words[number - 1] == "."):
            continue
        names, after = _chain(words, number)
        line = token.start[0]
        is_utils = words[number + 1 : number + 4] == PUBLIC_MODULE
        if token.string in ("from", "import") and words[number + 1] == PACKAGE and not is_utils:
            yield Finding(line, "import", token.line.strip())
        place = next((place for place, name in enumerate(names) if name.lstrip("_") in OBJECTS), None)
        if place is None:
            continue
        attributes = names[place + 1 :]
        if any(re.match("_(?!_)", name) for name in attributes):
            yield Finding(line, "private", ".".join(names))
        if (attributes and after in ASSIGNMENTS) or (words[number - 2] == "setattr" and after == ","):
            yield Finding(line, "assignment", ".".join(names))


def _chain(words: list[str], place: int) -> tuple[list[str], str]:
    """Return the names of `first.second.third` that begins at a place, and the word after them."""
    names = [words[place]]
    while words[place + 1] == ".":  # The last token of a file is empty.
        place += 2
        names.append(words[place])
    return names, words[place + 1]


def main() -> int:
    """Print all findings; return 1 if there is any."""
    files = sorted(file for pattern in SOURCES for file in Path.cwd().glob(pattern))
    findings = [(file, finding) for file in files for finding in find(file.read_text(encoding="utf-8"))]
    for file, finding in findings:
        print(
            f"{file.relative_to(Path.cwd())}:{finding.line}: {finding.kind}: {finding.text}", file=sys.stderr
        )
    print(f"Snakemake's API: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
