"""Compile a paper to PDF with pdfLaTeX and BibTeX from Debian packages. Auxiliary files are discarded."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common.errors import InputError
from common.files import display_path, write_text, written_whole
from common.options import run_program
from declared.paper import DEFAULT_CLASS
from report.document import CLASSES, class_of

MAX_PASSES = 6  # widths of long tables converge in four
_RERUN = re.compile(
    r"Rerun to get|Table widths have changed|Rerun LaTeX|There were undefined (references|citations)"
)
_LOCATION = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+): ", re.MULTILINE)
_ERROR = re.compile(rf"(?:{_LOCATION.pattern}|^! )(?P<message>.+)$", re.MULTILINE)
_MISSING = re.compile(r"\.(?:sty|cls)' not found")
_PAGES = re.compile(r"Output written on .*\((\d+) pages?")


def compile_pdf(main: Path, work: Path, log: Path) -> str:
    """Compile the file `main` into the folder `work`, and return TeX's last output, which `log` also gets.

    Raises:
        InputError: If TeX or BibTeX fails; it quotes the first error.
    """
    output, has_bibliography = "", False
    for _ in range(MAX_PASSES):
        output = _tex(main, work, log)
        if not has_bibliography and r"\citation" in (work / f"{main.stem}.aux").read_text(errors="replace"):
            _bibtex(main, work)
            has_bibliography = True
        elif not _RERUN.search(output):
            break
    return output


def _tex(main: Path, work: Path, log: Path) -> str:
    command = [
        "pdflatex",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-file-line-error",
        "-no-shell-escape",
        f"-output-directory={work}",
        main.name,
    ]
    done = subprocess.run(
        command,
        cwd=main.parent,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    output = done.stdout.decode(errors="replace")
    write_text(log, output)
    if done.returncode:
        raise tex_error(output, main)
    return output


def _bibtex(main: Path, work: Path) -> None:
    places = {name: f"{main.parent.resolve()}{os.pathsep}" for name in ("BIBINPUTS", "BSTINPUTS")}
    command = ["bibtex", main.stem]
    done = subprocess.run(
        command,
        cwd=work,
        env={**_environment(), **places},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode > 1:  # 1: warnings, or a broken entry that is not cited
        lines = done.stdout.decode(errors="replace").splitlines()
        telling = [line for line in lines if "---" in line or line.startswith("I ")] or lines or ["failed"]
        raise InputError(
            "broken-file", f"bibtex: {telling[0]}", file=f"{display_path(main.parent)}/references.bib"
        )


def _environment() -> dict[str, str]:
    """Return environment variables that keep TeX from wrapping the lines of its log, which are searched."""
    return {**os.environ, "max_print_line": "10000"}


def tex_error(log: str, main: Path) -> InputError:
    """Return TeX's first error with its location, and what to install if a package is missing."""
    message = _ERROR.search(log)
    if not message:
        return InputError("tex-failed", "pdflatex failed without a message", file=main)
    place = _LOCATION.search(log)  # the location of a missing file is in a later line
    file, line = (place["file"].removeprefix("./"), f":{place['line']}") if place else (main.name, "")
    is_package = bool(_MISSING.search(message["message"]))
    return InputError(
        "not-installed" if is_package else "tex-error",
        message["message"].strip(),
        file=f"{display_path(main.parent)}/{file}{line}",
        hint=install_hint(main) if is_package else "",
    )


def install_hint(main: Path) -> str:
    """Return the command that installs what a document needs."""
    document_class = CLASSES.get(class_of(main), CLASSES[DEFAULT_CLASS])
    return f"on Debian: apt-get install {' '.join(document_class.debian)}"


def main(*, main: Path, out: Path, log: Path) -> None:
    """Compile a paper, or its supplement.

    Args:
        main: main.tex or supplement.tex, in the paper's folder
        out: the PDF
        log: the file for TeX's output
    """
    if missing := [program for program in ("pdflatex", "bibtex") if not shutil.which(program)]:
        raise InputError(
            "not-installed",
            f"{' and '.join(missing)} not found on this machine ({install_hint(main)})",
            file=out,
            got=missing,
            hint=f"the sources are in {display_path(main.parent)}",
        )
    with tempfile.TemporaryDirectory(prefix="ringside-tex-") as work:
        output = compile_pdf(main, Path(work), log)
        with written_whole(out) as partial:
            shutil.copyfile(Path(work, f"{main.stem}.pdf"), partial)
    pages = _PAGES.search(output)
    print(f"{display_path(out)}: {pages[1] if pages else '?'} pages")


if __name__ == "__main__":
    sys.exit(run_program(main))
