"""Convert any text to ASCII that pdfLaTeX prints with T1 fonts."""

import functools
import re
import unicodedata

LONG_WORD = 20  # characters: a longer one may be broken at its dots and the like
_BREAKS = "._=/:,"
_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "\N{EM DASH}": "---",
    "−": r"$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "∓": r"$\mp$",
    "√": r"$\surd$",
    "₁": r"\textsubscript{1}",
    "²": r"\textsuperscript{2}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "·": r"\textperiodcentered{}",
    "°": r"\textdegree{}",
    "€": r"\texteuro{}",
    "\N{LEFT DOUBLE QUOTATION MARK}": "``",
    "\N{RIGHT DOUBLE QUOTATION MARK}": "''",
    "\N{LEFT SINGLE QUOTATION MARK}": "`",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{FRACTION SLASH}": "/",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "đ": r"\dj{}",
    "Đ": r"\DJ{}",
    "\N{LATIN SMALL LETTER DOTLESS I}": r"\i{}",
}
_ACCENTS = {
    "GRAVE ACCENT": "`",
    "ACUTE ACCENT": "'",
    "CIRCUMFLEX ACCENT": "^",
    "TILDE": "~",
    "MACRON": "=",
    "BREVE": "u",
    "DOT ABOVE": ".",
    "DIAERESIS": '"',
    "RING ABOVE": "r",
    "DOUBLE ACUTE ACCENT": "H",
    "CARON": "v",
    "CEDILLA": "c",
    "OGONEK": "k",
}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)")
_GREEK_CAPITALS = ["GAMMA", "DELTA", "THETA", "LAMBDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA"]


def latex_text(text: str, breaks: bool = False) -> str:
    """Return `text` in one line with LaTeX's special characters escaped; "?" for unprintable ones.

    Args:
        text: Any text.
        breaks: Whether long words (run IDs, paths) may be broken after a dot, an underscore and the like.
    """
    words = unicodedata.normalize("NFC", re.sub(r"\s+", " ", text)).split(" ")
    return " ".join(_word(word, breaks and len(word) > LONG_WORD) for word in words)


@functools.lru_cache(maxsize=2**16)
def _word(word: str, breaks: bool) -> str:
    return "".join(
        _written(character) + (r"\allowbreak{}" if breaks and character in _BREAKS else "")
        for character in word
    )


@functools.cache
def _written(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if character.isascii():
        return character if character.isprintable() else ""
    base, *marks = list(unicodedata.normalize("NFD", character))
    accents = [_ACCENTS.get(unicodedata.name(mark, "").removeprefix("COMBINING ")) for mark in marks]
    if marks and base.isascii() and all(accents):
        for accent in accents:
            base = rf"\{accent}{{{base}}}"
        return base
    if greek := _GREEK.fullmatch(unicodedata.name(character, "")):
        case, letter = greek[1], greek[2].replace("LAMDA", "LAMBDA")
        if letter == "OMICRON":
            return "o" if case == "SMALL" else "O"
        if case == "SMALL" or letter in _GREEK_CAPITALS:
            return rf"$\{letter.lower() if case == 'SMALL' else letter.capitalize()}$"
    if unicodedata.category(character)[0] in "MC":  # a mark that no letter took, or nothing to be seen
        return ""
    decomposed = unicodedata.normalize("NFKD", character)
    return "".join(map(_written, decomposed)) if decomposed != character else "?"
