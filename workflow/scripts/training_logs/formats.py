"""List the formats of training logs, and recognize the format of a file by its content."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from training_logs import lightning, megatron, mllog, step_table, torchtitan, trainer
from training_logs.log import Log, LogError

MAX_LINE = 1 << 20  # characters; a longer line is split
MAX_RECOGNITION_LINES = 20_000  # Libraries can print many warnings before the first step.
FORMATS: dict[str, Callable[[Iterable[str]], Log]] = {
    "mllog": mllog.read,
    "megatron": megatron.read,
    "torchtitan": torchtitan.read,
    "trainer": trainer.read,
    "lightning": lightning.read,
    "steps": step_table.read,
}


def read_log(path: Path, format_name: str) -> Log:
    """Return the steps and facts of a log.

    Args:
        path: The file.
        format_name: A name of `FORMATS`.

    Raises:
        LogError: If it cannot be read as this format.
        OSError: If the file cannot be read.
    """
    return FORMATS[format_name](text_lines(path))


def recognize(path: Path) -> str | None:
    """Return the format of a file, or None if it is not one of `FORMATS`.

    Raises:
        OSError: If the file cannot be read.
    """
    first = ""
    for number, line in enumerate(text_lines(path)):
        first = first or line.strip()
        if mllog.MARK in line:
            return "mllog"
        if megatron.MARK in line and "iteration" in line:
            return "megatron"
        if "step:" in line and "loss:" in line and (torchtitan.MARK in line or "wps:" in line):
            return "torchtitan"
        if trainer.MARK in line or '"train_runtime"' in line:
            return "trainer"
        if number >= MAX_RECOGNITION_LINES:
            break
    if any(name in first for name in lightning.TIMES):
        return "lightning"
    return "steps" if _has_step_columns(path) else None


def _has_step_columns(path: Path) -> bool:
    try:
        _, row = next(iter(step_table.read_rows(text_lines(path))), (0, {}))
        names = step_table.find_columns(row, {})
    except LogError:
        return False
    return "index" in names and bool({"seconds", "clock"} & set(names))


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; carriage returns, which progress bars write, end lines, too."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while line := file.readline(MAX_LINE):
            yield line
