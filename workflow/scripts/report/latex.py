"""Pieces of a LaTeX document: text, citations, references, figures, and the bibliography."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.latex import latex_text
from common.notes import Note

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
_ENTRY = re.compile(r"^@\w+\{(?P<key>[^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)
_OF = re.compile(r"^\s*keywords\s*=\s*\{(?P<names>[^}]*)\}", re.MULTILINE)
_FIELD = {name: re.compile(rf"^\s*{name}\s*=\s*\{{(?P<said>.*)\}},$", re.MULTILINE) for name in ("author", "year")}


def text(said: str) -> str:
    """Return what a person or a program wrote as LaTeX prints it; long names may be broken. A note keeps its code and facts."""
    printed = latex_text(said, breaks=True)
    return Note(said.code, printed, **said.facts) if isinstance(said, Note) else printed


def cite(*keys: str) -> str:
    """A citation, with the space before it that no line breaks at; nothing for no key."""
    return rf"~\cite{{{','.join(keys)}}}" if keys else ""


def cited(said: str) -> str:
    """Text in which works are named as in `Smyth 2004`, with the citation of each that is in the bibliography."""
    for entry in _ENTRY.finditer(BIBLIOGRAPHY.read_text(encoding="utf-8")):
        author, year = (_FIELD[name].search(entry[0]) for name in ("author", "year"))
        if author and year:
            family = author["said"].split(" and ")[0].split()[-1]
            named = re.compile(rf"(\b{re.escape(family)}(?: \\& \w+| et al\.)?,? {year['said']}\b)")
            said = named.sub(rf"\1~\\cite{{{entry['key']}}}", said)
    return said


def see(kind: str, name: str) -> str:
    """A reference to a figure (fig) or a table (tab) by its name."""
    return rf"{'Figure' if kind == 'fig' else 'Table'}~\ref{{{kind}:{name}}}"


def listed(words: Iterable[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def paragraph(heading: str, sentences: Iterable[str]) -> str:
    """Sentences under a heading; nothing where there are none."""
    said = [sentence for sentence in sentences if sentence]
    return "\n".join([rf"\subsection{{{heading}}}", *said, ""]) if said else ""


def items(entries: Iterable[str]) -> str:
    """A list with a point for each entry; nothing where there are none."""
    made = [rf"\item {entry}" for entry in entries if entry]
    return "\n".join([r"\begin{itemize}", *made, r"\end{itemize}", ""]) if made else ""


def command(line: str) -> str:
    """A command as a person types it."""
    return rf"\texttt{{{text(line).replace('--', '-{}-')}}}"  # which would be a dash


def figure(name: str, caption: str) -> str:
    """A figure of figures/ with its caption; the first sentence is its entry in a list of figures."""
    return "\n".join(
        [
            r"\begin{figure}[!htbp]",
            r"\centering",
            rf"\fitgraphics{{figures/{name}.pdf}}",
            rf"\caption[{{{text(first_sentence(caption))}}}]{{{text(caption)}}}\label{{fig:{name}}}",
            r"\end{figure}",
            "",
        ]
    )


def first_sentence(caption: str) -> str:
    """What a caption begins with, without its full stop."""
    return re.split(r"\.\s+(?=[A-Z])", " ".join(caption.split()), maxsplit=1)[0].rstrip(".")


def references(datasets: Mapping[str, Mapping[str, Any]]) -> str:
    """The bibliography: what studies are measured by and with, and where the data sets (name -> entry) come from."""
    entries = [
        f"@misc{{{dataset_key(name)},\n  note = {{{text(entry['citation'])}}},\n}}\n"
        for name, entry in datasets.items()
        if published(entry)
    ]
    return "\n".join([BIBLIOGRAPHY.read_text(encoding="utf-8"), *entries])


def published(entry: Mapping[str, Any]) -> bool:
    """Whether a data set's entry is that of a published one, which is to be cited: nobody made its samples here."""
    return bool(entry.get("citation")) and (bool(entry.get("files")) or entry["format"] == "scikit-learn")


def dataset_key(name: str) -> str:
    """The key of a data set in the bibliography."""
    return f"data-{name}"


def keys_of(*names: str) -> list[str]:
    """The keys of the entries in the bibliography that say (in `keywords`) that they are of one of these names."""
    found = []
    for entry in _ENTRY.finditer(BIBLIOGRAPHY.read_text(encoding="utf-8")):
        said = _OF.search(entry[0])
        if said and {name.strip() for name in said["names"].split(",")} & set(names):
            found.append(entry["key"])
    return found
