"""Leave out who made a study and where, for double-blind review: `anonymous: true` in the study.

Names of hosts, users, sites and authors become HOST-1, USER, SITE and AUTHOR; a path becomes PATH, with the
name of its file. Names come from the study, its records, its site and this machine. No folder of a path is
kept, since it can be the name of a user, except folders of the operating system, such as /usr/lib.
"""

import contextlib
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.records import distinct_names
from common.files import CHECKOUT, load_yaml, node_name, write_text, written_whole
from common.latex import latex_text
from declared.site import Site
from declared.study import Study
from figures import panels, style

HOST, USER, SITE, AUTHOR, PATH, ADDRESS = "HOST", "USER", "SITE", "AUTHOR", "PATH", "ADDRESS"
DESCRIPTION = "its description is left out for review"
LEFT_OUT = "left out for review, because it names hosts"
# Names that identify nobody, and occur as ordinary words.
COMMON_NAMES = frozenset({
    "local", "localhost", "virtual", "root", "user", "users", "admin", "nobody", "node", "node1", "data",
    "home", "work", "tmp", "job", "run", "test", "ringside",
})  # fmt: skip
USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")
SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "sys", "dev", "run", "boot")
MIN_NAME_CHARACTERS, MIN_STEM_CHARACTERS = 2, 3
_PART = r"[\w.@+~=,%-]+"
_PATH = re.compile(rf"(?<![\w/.~-])~?/(?!(?:{'|'.join(SYSTEM_FOLDERS)})\b)(?:{_PART}/)+(?:{_PART})?")
_FILE = re.compile(r"[^/]+\.[A-Za-z]\w{0,4}\Z")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IP = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)")
_DOMAIN = r"(?:\.[a-z][a-z0-9-]*)*"


@dataclass(frozen=True)
class Anonymizer:
    """Replace names, paths and addresses in texts.

    Attributes:
        words: What takes the place of each name.
        folders: Paths that are replaced literally, since they can contain spaces.
        active: Whether anything is replaced.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    active: bool = True

    def scrub(self, text: str) -> str:
        """Return a text without names, paths and addresses."""
        if not self.active:
            return text
        for folder in self.folders:
            text = text.replace(folder, f"/{PATH}/{PATH}")
        text = _PATH.sub(_shorten_path, text)
        for pattern in (_MAIL, _IP):
            text = pattern.sub(ADDRESS, text)
        return self._pattern.sub(self._word, text) if self._pattern else text

    def scrub_all(self, value: Any) -> Any:
        """Return a JSON value without names, paths and addresses in its texts and keys."""
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, Mapping):
            return {self.scrub(key): self.scrub_all(part) for key, part in value.items()}
        return [self.scrub_all(part) for part in value] if isinstance(value, list | tuple) else value

    def has_name(self, text: str) -> bool:
        """Return whether a text contains a name that identifies a person or a place."""
        return self.scrub(text) != text

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """A pattern of all names, the longest first; hosts also match with a domain or another number."""
        choices = []
        for name in sorted(self.words, key=len, reverse=True):
            is_host = self.words[name].startswith(HOST)
            choices.append(re.escape(name) + _DOMAIN * is_host)
            stem = name.rstrip("0123456789-")
            if is_host and stem != name and len(stem) >= MIN_STEM_CHARACTERS and stem not in COMMON_NAMES:
                choices.append(rf"{re.escape(stem)}-?(?:\d+|\[[\d,-]+\]){_DOMAIN}")
        return re.compile(rf"(?<![^\W_])(?:{'|'.join(choices)})(?![^\W_])", re.I) if choices else None

    def _word(self, match: re.Match[str]) -> str:
        name = match[0].lower()
        return self._lower.get(name) or self._lower.get(name.partition(".")[0], HOST)

    @cached_property
    def _lower(self) -> dict[str, str]:
        return {name.lower(): word for name, word in self.words.items()}


NOT_ANONYMOUS = Anonymizer(active=False)
BREAK = r"\allowbreak{}"


def scrub_sources(folder: Path, figures: Sequence[Path], anonymizer: Anonymizer) -> None:
    """Remove names from the sources of a paper in `folder`, except from main.tex, which its author writes.

    Figures that show a name are replaced by empty ones.

    Args:
        folder: The paper's folder.
        figures: The figures that were copied into it, without their suffixes.
        anonymizer: The anonymizer of the study.
    """
    printed = {latex_text(name): word for name, word in anonymizer.words.items()}
    in_latex = replace(anonymizer, words={**anonymizer.words, **printed})
    for file in sorted(folder.rglob("*.tex")):
        if file.name != "main.tex":
            lines = file.read_text(encoding="utf-8").split("\n")
            write_text(file, "\n".join(_scrub_line(line, in_latex) for line in lines))
    for stem in figures:
        if anonymizer.has_name(Path(f"{stem}.svg").read_text(encoding="utf-8")):
            empty = style.new_figure(style.COLUMN_INCHES, 1)
            panels.write_remark(empty.subplots(), LEFT_OUT)
            with written_whole(folder / "figures" / f"{stem.name}.pdf") as partial:
                empty.savefig(partial, format="pdf", metadata={"CreationDate": None})


def _scrub_line(line: str, anonymizer: Anonymizer) -> str:
    """Return a line of LaTeX without names; a line without any keeps its optional line breaks."""
    plain = line.replace(BREAK, "")
    return anonymizer.scrub(plain) if anonymizer.has_name(plain) else line


def build_anonymizer(
    study: Study, site: Site | None, runs: pd.DataFrame, tables: Sequence[Path] = ()
) -> Anonymizer:
    """Return the anonymizer of a study; it changes nothing unless the study is anonymous.

    Args:
        study: The study.
        site: Its site, if it is known.
        runs: All runs of the study.
        tables: Printed tables, without suffixes; the table `node_check` names nodes that no run used.
    """
    if not study.anonymous:
        return NOT_ANONYMOUS
    hosts = dict.fromkeys([*distinct_names(runs, "hosts"), node_name()])
    hosts |= dict.fromkeys(dict(site.exclude_nodes) if site else {})
    for stem in tables:
        if stem.name == "node_check":
            hosts |= dict.fromkeys(pd.read_csv(f"{stem}.csv", dtype=str)["host"])
    words: dict[str, str] = {}
    for place, host in enumerate(hosts, 1):
        words |= dict.fromkeys([host, host.partition(".")[0]], f"{HOST}-{place}")
    sites = {*runs["site"].dropna(), *([site.name] if site else [])}
    accounts = [site.scheduler.account] if site and site.scheduler.account else []
    if site:
        words[" ".join(str(load_yaml(site.file)["description"]).split())] = DESCRIPTION
    words |= (
        dict.fromkeys(sites, SITE)
        | dict.fromkeys([*_users(), *accounts], USER)
        | dict.fromkeys(_authors(study), AUTHOR)
    )
    distinctive_words = {
        name: word
        for name, word in words.items()
        if len(name) >= MIN_NAME_CHARACTERS and name.lower() not in COMMON_NAMES and not name.isdigit()
    }
    folders = {str(path) for path in (CHECKOUT, Path.cwd(), Path.home())} - {"/"}
    return Anonymizer(distinctive_words, sorted(folders, key=len, reverse=True))


def _users() -> Iterator[str]:
    """Yield the names of the user who runs this process."""
    yield from (os.environ[name] for name in USER_VARIABLES if os.environ.get(name))
    yield Path.home().name
    with contextlib.suppress(KeyError):  # a user without an entry, as in containers
        entry = pwd.getpwuid(os.getuid())
        yield from (entry.pw_name, entry.pw_gecos.partition(",")[0])


def _authors(study: Study) -> Iterator[str]:
    """Yield the names of authors and their affiliations."""
    for author in study.authors:
        yield f"{author.given_names} {author.family_names}"
        yield author.family_names
        yield from (part for part in (author.affiliation, author.orcid) if part)


def _shorten_path(match: re.Match[str]) -> str:
    """Return PATH with the name of the file; a folder's name is left out, since it can be a user's."""
    folder, _, last = match[0].rpartition("/")
    return f"{PATH}/{last}" if folder.count("/") > 1 and _FILE.fullmatch(last) else PATH
