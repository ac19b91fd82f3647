"""Read the documentation: its text, and every command in it.

Commands are lines of sh blocks, and inline code that starts with one of CALLS.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from common.files import CHECKOUT

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
COMMENT = re.compile(r"(^|\s+)#(\s.*)?$")
MAKE, RINGSIDE = "make", "./ringside"
CALLS = (f"{MAKE} ", "snakemake ", f"{RINGSIDE} ")
FORM = re.compile(r"(=| )[A-Z]{4,}\b(?!=)|\.\.\.")  # figures STUDY=NAME, bench-..., archive STUDY, TARGET
LISTS = Path(__file__).with_name("commands.yaml")


@dataclass(frozen=True)
class Page:
    """A page in Markdown, named by its path relative to the checkout."""

    name: str
    text: str

    def blocks(self, language: str) -> list[str]:
        """Return the contents of its code blocks in a language."""
        return [match["text"] for match in BLOCK.finditer(self.text) if match["language"] == language]

    @property
    def prose(self) -> str:
        """The page without its code blocks."""
        return BLOCK.sub("", self.text)

    @property
    def spans(self) -> list[str]:
        """Its inline code."""
        return [" ".join(span.split()) for span in INLINE.findall(self.prose)]

    @property
    def commands(self) -> list[str]:
        """Its commands without comments and duplicates: those of code blocks, then inline ones."""
        lines = [line for block in self.blocks("sh") for line in block.splitlines()]
        in_blocks = [part.strip() for line in lines for part in COMMENT.sub("", line).split(" && ")]
        inline = [span for span in self.spans if span.startswith(CALLS)]
        return list(dict.fromkeys(command for command in [*in_blocks, *inline] if command))


def pages() -> Iterator[Page]:
    """Yield all pages: those in the root folder, the tutorials, and then the others by name."""
    tutorials = [CHECKOUT / "docs" / "tutorial" / f"{name}.md" for name in ("laptop", "cluster")]
    other_pages = sorted(set((CHECKOUT / "docs").rglob("*.md")) - set(tutorials))
    for file in [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *tutorials, *other_pages]:
        yield Page(str(file.relative_to(CHECKOUT)), file.read_text(encoding="utf-8"))


def page(name: str) -> Page:
    """Return a page by its name."""
    return next(candidate for candidate in pages() if candidate.name == name)


CAMPAIGNS = "docs/campaigns/README.md"


def on_one_line(name: str = CAMPAIGNS) -> str:
    """Return the text of a page on one line."""
    return " ".join(page(name).text.split())


def missing_sentences(sentences: list[str], name: str = CAMPAIGNS) -> list[str]:
    """Return the sentences that are not on a page."""
    text = on_one_line(name)
    return [sentence for sentence in sentences if sentence not in text]


def section(name: str, page_name: str = CAMPAIGNS) -> str:
    """Return the text below the first heading that contains `name`, to the next heading of its level."""
    text = page(page_name).text
    heading = next(match for match in re.finditer(r"^(#+) .*$", text, re.MULTILINE) if name in match[0])
    after = text[heading.end() :]
    end = re.search(
        rf"^#{{1,{len(heading[1])}}} ", BLOCK.sub(lambda block: " " * len(block[0]), after), re.MULTILINE
    )
    return after[: end.start()] if end else after


@dataclass(frozen=True)
class Lists:
    """Content of tests/support/commands.yaml.

    Attributes:
        run: Commands that tests/workflow/test_pages.py runs.
        planned: Commands that it plans.
        elsewhere: Other commands, each with the test or target that runs it.
        targets: Targets of the Makefile that something else runs.
    """

    run: list[str]
    planned: list[str]
    elsewhere: dict[str, str]
    targets: list[str]

    @property
    def commands(self) -> set[str]:
        """All commands that are listed."""
        return {*self.run, *self.planned, *self.elsewhere}

    def cover(self, command: str) -> bool:
        """Return whether something runs a command.

        For a command with only a target, or with placeholders, it is enough that its target is run.
        """
        words = command.split()
        if command in self.commands or (words[0] == MAKE and words[1] in self.targets):
            return True
        is_form = bool(FORM.search(command))
        if words[0] in (MAKE, RINGSIDE) and (len(words) == 2 or is_form):
            return words[1] in {
                listed.split()[1] for listed in self.commands if listed.startswith((MAKE, RINGSIDE))
            }
        return is_form


def lists() -> Lists:
    """Read tests/support/commands.yaml."""
    content = yaml.safe_load(LISTS.read_text(encoding="utf-8"))
    elsewhere = [(command, by) for by, commands in content["elsewhere"].items() for command in commands]
    listed = [*content["run"], *content["planned"], *dict(elsewhere)]
    assert len(set(listed)) == len(elsewhere) + len(content["run"]) + len(content["planned"]), (
        "a command stands twice"
    )
    return Lists(content["run"], content["planned"], dict(elsewhere), content["targets"])
