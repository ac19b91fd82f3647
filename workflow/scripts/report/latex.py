"""Write pieces of a LaTeX document: text, citations, references, figures and the bibliography."""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from common.latex import latex_text
from common.notes import Note
from common.text import first_sentence
from report.checkout import citation
from report.text import replace_names

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
_ENTRY = re.compile(r"^@\w+\{(?P<key>[^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)
_KEYWORDS = re.compile(r"^\s*keywords\s*=\s*\{(?P<names>[^}]*)\}", re.MULTILINE)
_CODE = re.compile(r"(?<!`)`(?P<code>[^`'\s]+)`(?!`)")  # no quotation marks
_FIELD = {
    name: re.compile(rf"^\s*{name}\s*=\s*\{{(?P<value>.*)\}},$", re.MULTILINE) for name in ("author", "year")
}


def to_latex(source: str) -> str:
    """Return text in LaTeX, with optional line breaks in long names and none before a per cent sign.

    A note keeps its code and facts.
    """
    printed = latex_text(source, breaks=True).replace(r" \%", r"~\%")
    return Note(source.code, printed, **source.facts) if isinstance(source, Note) else printed


def cite(*keys: str) -> str:
    """Return a citation with a non-breaking space before it; "" without keys."""
    return rf"~\cite{{{','.join(keys)}}}" if keys else ""


def cited(source: str) -> str:
    """Return text with a citation after each mention of a work of the bibliography, such as `Smyth 2004`."""
    for entry in _ENTRY.finditer(BIBLIOGRAPHY.read_text(encoding="utf-8")):
        author, year = (_FIELD[name].search(entry[0]) for name in ("author", "year"))
        if author and year:
            family = author["value"].split(" and ")[0].split()[-1]
            named = re.compile(rf"(\b{re.escape(family)}(?: \\& \w+| et al\.)?,? {year['value']}\b)")
            source = named.sub(rf"\1~\\cite{{{entry['key']}}}", source)
    return source


def see(kind: str, name: str) -> str:
    """Return a reference to a figure (fig) or a table (tab) by its name."""
    return rf"{'Figure' if kind == 'fig' else 'Table'}~\ref{{{kind}:{name}}}"


def link_names(source: str, labels: Collection[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Return LaTeX with references for texts such as "table `name`", and other words in backticks as code.

    Args:
        source: LaTeX.
        labels: Labels of the document's figures and tables, such as tab:cells.
        elsewhere: What figures and tables of another document are called, such as `Table S3`, by label.
    """

    def refer(kind: str, name: str) -> str | None:
        prefix, plain_name = "fig" if kind == "figure" else "tab", name.replace(r"\_", "_")
        label = f"{prefix}:{plain_name}"
        if label in labels:
            return see(prefix, plain_name)
        return elsewhere[label].replace(" ", "~", 1) if elsewhere and label in elsewhere else None

    return _CODE.sub(r"\\texttt{\g<code>}", replace_names(source, refer))


def paragraph(heading: str, sentences: Iterable[str]) -> str:
    """Return sentences under a heading; "" without sentences."""
    nonempty = [sentence for sentence in sentences if sentence]
    return "\n".join([rf"\subsection{{{heading}}}", *nonempty, ""]) if nonempty else ""


def items(entries: Iterable[str]) -> str:
    """Return a list with an item per entry; "" without entries."""
    lines = [rf"\item {entry}" for entry in entries if entry]
    return (
        "\n".join(
            [
                r"\begin{itemize}\setlength{\itemsep}{2pt}\setlength{\parsep}{0pt}",
                *lines,
                r"\end{itemize}",
                "",
            ]
        )
        if lines
        else ""
    )


def command(line: str) -> str:
    """Return a command line in LaTeX."""
    return rf"\texttt{{{to_latex(line).replace('--', '-{}-')}}}"  # LaTeX prints -- as a dash


def figure_environment(name: str, caption: str) -> str:
    """Return the environment of a figure in figures/. The first sentence of its caption is the short caption.

    The preamble makes it as wide as a column or as the page.
    """
    return "\n".join(
        [
            rf"\begin{{fittedfigure}}{{figures/{name}.pdf}}",
            rf"\Description{{{to_latex(first_sentence(caption))}.}}",
            rf"\caption[{{{to_latex(first_sentence(caption))}}}]{{{to_latex(caption)}}}\label{{fig:{name}}}",
            r"\end{fittedfigure}",
            "",
        ]
    )


def references(datasets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the bibliography of methods and software, of Ringside, and of these data sets by name."""
    entries = [
        f"@misc{{{dataset_key(name)},\n  note = {{{to_latex(entry['citation'])}}},\n}}\n"
        for name, entry in datasets.items()
        if published(entry)
    ]
    return "\n".join([BIBLIOGRAPHY.read_text(encoding="utf-8"), _ringside_entry(), *entries])


def _ringside_entry() -> str:
    """Return the entry of Ringside in the bibliography."""
    cited = citation()
    authors = " and ".join(f"{{{author['name']}}}" for author in cited["authors"])
    return (
        f"@misc{{ringside,\n  author = {{{authors}}},\n  title = {{{to_latex(cited['title'])}}},\n"
        f"  note = {{Version {cited['version']}}},\n}}\n"
    )


def published(entry: Mapping[str, Any]) -> bool:
    """Return whether a data set is published, so that it has to be cited."""
    has_source = bool(entry.get("files") or entry.get("folder")) or entry["format"] == "scikit-learn"
    return has_source and bool(entry.get("citation"))


def dataset_key(name: str) -> str:
    """Return the key of a data set in the bibliography."""
    return f"data-{name}"


def keys_of(*names: str) -> list[str]:
    """Return the keys of bibliography entries with one of these names as a keyword."""
    keys = []
    for entry in _ENTRY.finditer(BIBLIOGRAPHY.read_text(encoding="utf-8")):
        keywords = _KEYWORDS.search(entry[0])
        if keywords and {name.strip() for name in keywords["names"].split(",")} & set(names):
            keys.append(entry["key"])
    return keys
