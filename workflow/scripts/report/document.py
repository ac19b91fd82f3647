"""Describe the LaTeX classes of papers: their packages, their authors, and the Debian packages to install.

Debian has article in texlive-latex-recommended, and acmart and IEEEtran in texlive-publishers; acmart also
needs texlive-latex-extra. Without texlive-fonts-extra (500 MB), acmart uses Times and Helvetica.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError
from declared.paper import ClassName
from declared.study import Study
from declared.study_keys import Author
from report.latex import to_latex

NO_AUTHORS = r"\tobenamed{authors}"
NO_AFFILIATION = r"\tobenamed{affiliation}"
COMMON_PACKAGES = r"\usepackage{array,booktabs,graphicx,longtable,pdflscape}"
ARTICLE_PACKAGES = r"""\usepackage[T1]{fontenc}
\usepackage{mathptmx}
\usepackage{courier}
\usepackage[a4paper,textwidth=6.9in,textheight=9.7in,columnsep=0.2in]{geometry}
\usepackage[font=footnotesize,labelfont=bf]{caption}
\raggedbottom
"""
ACMART_PACKAGES = r"""\IfFileExists{libertine.sty}{}{% the ACM's fonts are in Debian's texlive-fonts-extra
  \usepackage[T1]{fontenc}\usepackage{mathptmx}\usepackage[scaled=0.9]{helvet}\usepackage{courier}}
"""
IEEETRAN_PACKAGES = r"""\usepackage[T1]{fontenc}
\usepackage{courier}
"""
# These commands scale graphics to the line width, and to a height with room for long captions. A figure
# is as wide as the page if its graphics are clearly wider than a column.
COMMANDS = Path(__file__).with_name("commands.tex").read_text(encoding="utf-8")
# For documents in one column, whose figures and tables stay where they are input.
NOTHING_FLOATS = Path(__file__).with_name("nothing_floats.tex").read_text(encoding="utf-8").rstrip("\n")
_CLASS = re.compile(r"^\s*\\documentclass\s*(?:\[[^\]]*\]\s*)?\{(?P<name>[^}]+)\}", re.MULTILINE)
HYPERREF = r"""\usepackage[hidelinks]{hyperref}
"""


@dataclass(frozen=True)
class DocumentClass:
    """A LaTeX class of papers.

    Attributes:
        debian: Debian packages that contain the class and all that the generated parts need.
        preamble: Commands that load packages, before those common to all classes.
        authors: Returns the authors in the commands of the class.
    """

    debian: Sequence[str]
    preamble: str
    authors: Callable[[Sequence[Author]], str]


def article_authors(authors: Sequence[Author]) -> str:
    r"""Return authors for \author of article, each with the affiliation below."""
    names = [
        _name(author) + (rf"\\{to_latex(author.affiliation)}" if author.affiliation else "")
        for author in authors
    ]
    return r" \and ".join(names) or NO_AUTHORS


def acmart_authors(authors: Sequence[Author]) -> str:
    r"""Return acmart's commands \author, \orcid and \affiliation for each author."""
    # The class asks for a country in every affiliation, and the study names none.
    named = [
        (_name(author), (author.orcid or "").rpartition("/")[2], _affiliation(author)) for author in authors
    ]
    return "".join(
        rf"\author{{{name}}}"
        + (rf"\orcid{{{orcid}}}" if orcid else "")
        + rf"\affiliation{{\institution{{{affiliation}}}\country{{}}}}"
        for name, orcid, affiliation in named or [(NO_AUTHORS, "", NO_AFFILIATION)]
    )


def ieeetran_authors(authors: Sequence[Author]) -> str:
    r"""Return blocks of names and affiliations for \author of IEEEtran."""
    named = [(_name(author), _affiliation(author)) for author in authors] or [(NO_AUTHORS, NO_AFFILIATION)]
    return r" \and ".join(
        rf"\IEEEauthorblockN{{{name}}}\IEEEauthorblockA{{{affiliation}}}" for name, affiliation in named
    )


def _name(author: Author) -> str:
    return to_latex(f"{author.given_names} {author.family_names}")


def _affiliation(author: Author) -> str:
    return to_latex(author.affiliation) if author.affiliation else NO_AFFILIATION


TEX = ("texlive-latex-recommended", "texlive-fonts-recommended")
CLASSES: Mapping[str, DocumentClass] = {
    "article": DocumentClass(TEX, ARTICLE_PACKAGES + HYPERREF, article_authors),
    "acmart": DocumentClass(
        (*TEX, "texlive-publishers", "texlive-latex-extra"), ACMART_PACKAGES, acmart_authors
    ),
    "IEEEtran": DocumentClass((*TEX, "texlive-publishers"), IEEETRAN_PACKAGES + HYPERREF, ieeetran_authors),
}


def skeleton(name: ClassName) -> Path:
    """Return the initial main.tex of a paper of this class."""
    return Path(__file__).with_name(f"main-{name}.tex")


def class_of(main: Path) -> str:
    """Return the class that a LaTeX file declares; "" if it declares none or does not exist."""
    declared = _CLASS.search(main.read_text(encoding="utf-8", errors="replace")) if main.is_file() else None
    return declared["name"].strip() if declared else ""


def check_class(main: Path, name: ClassName) -> None:
    """Raise InputError if main.tex has another of CLASSES than the study's paper."""
    written = class_of(main)
    if written in CLASSES and written != name:
        raise InputError(
            "other-class",
            f"is of class {written}, but the study's paper is of class {name}",
            file=main,
            got=written,
            hint=f"set paper: {{class: {written}}}, or rename the file, run the command again and copy "
            "your text",
        )


def options(name: ClassName, anonymous: bool = False) -> str:
    r"""Return the options of the class that the study sets, which precede \documentclass."""
    if name == "acmart" and anonymous:
        return "\\PassOptionsToClass{anonymous,review}{acmart}\n"
    return "% The study sets no option of the class.\n"


def preamble(study: Study, name: ClassName, anonymous: bool = False) -> str:
    """Return packages and commands of a paper, with the study's title, question and authors."""
    document_class = CLASSES[name]
    authors = [Author(given_names="Anonymous", family_names="authors")] if anonymous else study.authors
    commands = {
        "title": to_latex(study.title),
        "question": to_latex(study.question),
        "authors": document_class.authors(authors),
    }
    return (
        document_class.preamble
        + f"{COMMON_PACKAGES}\n{COMMANDS}"
        + "".join(rf"\newcommand{{\study{word}}}{{{text}}}" + "\n" for word, text in commands.items())
    )
