"""The sources of a study's paper, made anew from its records: results/<study>/paper/, all but main.tex, which is its author's.

    preamble.tex                what the other files need; the study's title and question
    methods.tex, threats.tex, reproducibility.tex    text
    results.tex, tables.tex     all figures and all tables; figures/ and tables/ have each by itself
    references.bib              what is cited

The figures and tables are copies, so that the folder can be taken elsewhere as it is.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from common.errors import InputError, exit_status
from common.files import write_text, written_whole
from common.tables import read_table
from common.text import number_of
from declared.datasets import load_dataset
from declared.site import load_site
from declared.study import load_study
from report.latex import figure, first_sentence, references, see, text
from report.methods import Facts, factor_table, framework_table, methods, reproducibility, threats

MADE = "% Written again by every `snakemake paper`: to change this text, copy it into main.tex.\n"
# TeX fits what is too large, whoever drew it; long captions leave that much of a page to their figure.
PREAMBLE = r"""\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{mathptmx}
\usepackage{courier}
\usepackage[a4paper,textwidth=6.9in,textheight=9.7in]{geometry}
\usepackage{array,booktabs,graphicx,longtable,pdflscape}
\usepackage[font=footnotesize,labelfont=bf]{caption}
\usepackage[hidelinks]{hyperref}
\emergencystretch=3em
\renewcommand{\topfraction}{0.95}
\renewcommand{\floatpagefraction}{0.7}
\renewcommand{\textfraction}{0.05}
\makeatletter
\renewcommand{\fps@table}{!htp}
\newcommand{\floatsfirst}{\ifx\@deferlist\@empty\else\clearpage\fi} % tables that float stay before those that do not
\makeatother
\newsavebox{\ringsidebox}
\newcommand{\fitgraphics}[1]{%
  \sbox{\ringsidebox}{\includegraphics{#1}}%
  \ifdim\wd\ringsidebox>\linewidth \sbox{\ringsidebox}{\resizebox{\linewidth}{!}{\usebox{\ringsidebox}}}\fi
  \ifdim\ht\ringsidebox>0.66\textheight \sbox{\ringsidebox}{\resizebox{!}{0.66\textheight}{\usebox{\ringsidebox}}}\fi
  \usebox{\ringsidebox}}
\newcommand{\tobewritten}[1]{\par\medskip\noindent\fbox{%
  \parbox{\dimexpr\linewidth-2\fboxsep-2\fboxrule}{\textbf{To be written:} #1}}\par\medskip}
"""


def texts(facts: Facts, captions: dict[str, str]) -> dict[str, str]:
    """The generated files that are not copies: name -> content. `captions`: the paper's figures with their captions."""
    return {
        "preamble.tex": PREAMBLE
        + rf"\newcommand{{\studytitle}}{{{text(facts.study.title)}}}"
        + "\n"
        + rf"\newcommand{{\studyquestion}}{{{text(facts.study.question)}}}"
        + "\n",
        "methods.tex": methods(facts) + factor_table(facts) + framework_table(facts),
        "results.tex": results(facts, captions),
        "tables.tex": "".join(f"\\input{{tables/{name}}}\\floatsfirst\n" for name in facts.shown),
        "threats.tex": threats(facts),
        "reproducibility.tex": reproducibility(facts),
        **{f"figures/{name}.tex": figure(name, caption) for name, caption in captions.items()},
    }


def results(facts: Facts, captions: dict[str, str]) -> str:
    """A list of what the figures show, then all figures."""
    done, planned = len(facts.ok), number_of(len(facts.runs), "run")
    entries = [rf"\item {see('fig', name)}: {text(first_sentence(said))}." for name, said in captions.items()]
    lines = [f"{done:,} of {planned} succeeded{facts.see('cells', '; the means of all cells are in ', '')}."]
    if entries:
        lines += ["The figures show:", r"\begin{itemize}", *entries, r"\end{itemize}"]
    return "\n".join([*lines, *(rf"\input{{figures/{name}}}" for name in captions), r"\clearpage", ""])


def site_of(runs: pd.DataFrame, configured: str) -> str:
    """The site where the runs were made, by their records, whatever is configured."""
    named = runs["site"].dropna().unique()
    return str(named[0]) if len(named) == 1 else configured


def copied(source: Path, target: Path) -> None:
    """`source` as the file `target`, whole or not at all."""
    with written_whole(target) as partial:
        shutil.copyfile(source, partial)


def write(facts: Facts, figures: Sequence[Path], all_tables: Sequence[Path], out: Path) -> None:
    """Write all generated files into `out`; `figures` and `all_tables` are files without their suffixes."""
    captions = {
        stem.name: Path(f"{stem}.caption.md").read_text(encoding="utf-8").strip().rstrip(".") + "." for stem in figures
    }
    for name, content in texts(facts, captions).items():
        write_text(out / name, MADE + content)
    for stem in figures:
        copied(Path(f"{stem}.pdf"), out / "figures" / f"{stem.name}.pdf")
    for stem in all_tables:
        copied(Path(f"{stem}.tex"), out / "tables" / f"{stem.name}.tex")
    known = {}
    for name in dict.fromkeys(facts.runs["dataset"]):
        try:
            known[name] = load_dataset(name)
        except InputError:  # a data set of another checkout: methods.tex says so
            continue
    write_text(out / "references.bib", references(known))


def main(argv: list[str] | None = None) -> None:
    """Make the sources of a study's paper, all but main.tex."""
    parser = argparse.ArgumentParser(prog="report.paper", description=main.__doc__)
    parser.add_argument("--study", required=True, help="name of a file in config/studies/")
    parser.add_argument("--site", required=True, help="name of a file in config/sites/, where the records name none")
    parser.add_argument("--runs", required=True, type=Path, metavar="CSV", help="runs.csv of the study")
    parser.add_argument(
        "--network", nargs="*", type=Path, default=[], metavar="CSV", help="network.csv, where there is one"
    )
    parser.add_argument(
        "--figures", nargs="*", type=Path, default=[], metavar="STEM", help="files without their suffix"
    )
    parser.add_argument("--tables", nargs="*", type=Path, default=[], metavar="STEM", help="files without their suffix")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="the paper's folder")
    args = parser.parse_args(argv)
    runs = read_table(args.runs, "runs")
    try:
        site = load_site(site_of(runs, args.site))
    except InputError:  # of published tables the site's file may be elsewhere
        site = None
    checks = [Path(f"{stem}.csv") for stem in args.tables if stem.name == "checks"]
    facts = Facts(
        study=load_study(args.study),
        site=site,
        runs=runs,
        network=read_table(args.network[0], "network") if args.network else None,
        checks=pd.read_csv(checks[0]) if checks else None,
        shown=[stem.name for stem in args.tables],
    )
    write(facts, args.figures, args.tables, args.out)


if __name__ == "__main__":
    sys.exit(exit_status(main))
