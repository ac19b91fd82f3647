"""Whatever a person writes is printed by pdfLaTeX, and is in ASCII."""

import pytest

from common.latex import latex_text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a_b & 5 %", r"a\_b \& 5 \%"),
        ("#1 {x} ~ ^ $ \\", r"\#1 \{x\} \textasciitilde{} \textasciicircum{} \$ \textbackslash{}"),
        ("Größe, naïve, Łódź", r"Gr\"{o}\ss{}e, na\"{i}ve, \L{}\'{o}d\'{z}"),
        ("mean × exp(∓ t s / √n)", r"mean $\times$ exp($\mp$ t s / $\surd$n)"),
        ("η² of ω, Δ", r"$\eta$\textsuperscript{2} of $\omega$, $\Delta$"),
        ("decomposed: o\N{COMBINING DIAERESIS}", r"decomposed: \"{o}"),
        ("\N{HORIZONTAL ELLIPSIS} \N{MICRO SIGN}s, ½", r"... $\mu$s, 1/2"),
        ("two\n\nparagraphs\tand a bell\a", "two paragraphs and a bell"),
        ("漢字 \N{PARTY POPPER}", "?? ?"),
    ],
)
def test_signs_become_latex_commands(text: str, written: str) -> None:
    assert latex_text(text) == written and latex_text(text).isascii()


def test_only_long_words_get_line_breaks() -> None:
    name = "tensorflow-multiworker.small_cnn"
    assert (
        latex_text(f"e.g. {name}", breaks=True)
        == r"e.g. tensorflow-multiworker.\allowbreak{}small\_\allowbreak{}cnn"
    )
    assert latex_text(name) == r"tensorflow-multiworker.small\_cnn"
