"""Convert any text to ASCII that pdfLaTeX can typeset with T1 fonts."""

import functools
import re
import unicodedata

MAX_UNBROKEN_CHARACTERS = 20  # A longer word can be broken after one of _BREAKS.
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
    """Return `text` in one line with LaTeX's special characters escaped.

    A character without an equivalent becomes "?"; control characters and marks alone are left out.

    Args:
        text: Any text.
        breaks: Whether to allow line breaks in long words, such as run IDs and paths, after any of _BREAKS.
    """
    words = unicodedata.normalize("NFC", re.sub(r"\s+", " ", text)).split(" ")
    return " ".join(_latex_word(word, breaks and len(word) > MAX_UNBROKEN_CHARACTERS) for word in words)


@functools.lru_cache(maxsize=2**16)
def _latex_word(word: str, breaks: bool) -> str:
    return "".join(
        _latex_character(character) + (r"\allowbreak{}" if breaks and character in _BREAKS else "")
        for character in word
    )


@functools.cache
def _latex_character(character: str) -> str:
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
    if unicodedata.category(character)[0] in "MC":  # a mark without a letter, or a control character
        return ""
    decomposed = unicodedata.normalize("NFKD", character)
    return "".join(map(_latex_character, decomposed)) if decomposed != character else "?"
