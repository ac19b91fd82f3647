"""Figures are written whole or not at all, even on a full disk."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

from common.files import CHECKOUT
from figures import style

DRAW = """
import sys
from common.errors import exit_status
from figures import style
def main():
    figure = style.new_figure(3, 2)
    figure.subplots().plot(range(2000))
    style.save(figure, sys.argv[1])
sys.exit(exit_status(main))
"""


def limit_files() -> None:
    """Let no file grow beyond 2,000 bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_figure_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRAW, str(tmp_path / "a")]
    variables = {
        "PYTHONPATH": str(CHECKOUT / "workflow" / "scripts"),
        "MPLCONFIGDIR": str(tmp_path / "matplotlib"),
    }
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # which would be cut, too
    (tmp_path / "matplotlib").mkdir()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=variables, preexec_fn=limit_files
    )
    messages = [line for line in done.stderr.splitlines() if line.startswith("ringside: ")]
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert len(messages) == 1 and str(tmp_path / "a.pdf") in messages[0]
    assert [path.name for path in tmp_path.iterdir()] == ["matplotlib"]


def test_files_have_embedded_fonts_text_and_no_date(tmp_path: Path) -> None:
    figure = style.new_figure(3, 2)
    figure.subplots().set_xlabel("time of an epoch")
    style.save(figure, tmp_path / "a")
    content = {path.suffix: path.read_bytes() for path in tmp_path.iterdir()}
    begins = {suffix: data[:5] for suffix, data in content.items()}
    assert begins == {".pdf": b"%PDF-", ".svg": b"<?xml", ".png": b"\x89PNG\r"}
    assert b"/FontFile2" in content[".pdf"] and b"/Type3" not in content[".pdf"]
    assert b"CreationDate" not in content[".pdf"] and b"<dc:date>" not in content[".svg"]
    assert b"time of an epoch" in content[".svg"]
