"""Show a scaling projection (`./ringside predict`)."""

from dataclasses import replace
from pathlib import Path

from analysis import tables
from common.errors import system_faults
from common.files import write_text
from figures import style
from figures.kinds.projection import draw_curves
from prediction.projection import project_scaling
from prediction.projection_table import counts_table
from prediction.question import ScalingQuestion


def show_projection(question: ScalingQuestion, out: Path | None = None) -> None:
    """Print the answer to a question, and write it as a table and a figure.

    Args:
        question: The question (prediction.question).
        out: Files to write, without their suffix; None: print alone.
    """
    projection = project_scaling(question)
    answer_tables = [projection.table]
    is_single = len(projection.rows) == 1
    powers = [2**power for power in range(question.max_nodes.bit_length())]
    counts = question.at or (powers if is_single else ())
    if counts and len(projection.rows):
        answer_tables.append(counts_table(projection.curves, counts))
    printed = replace(answer_tables[0], notes=projection.notes)
    print("\n\n".join([*projection.answers, *map(tables.markdown, [printed, *answer_tables[1:]])]))
    if out:
        notes = [*projection.answers, *projection.notes]
        figure, caption = draw_curves(projection.curves, projection.rows, notes)
        with system_faults(out):
            for table, suffix in zip(answer_tables, ("", "_counts"), strict=False):
                tables.write(table, out.with_name(f"{out.name}{suffix}"))
            style.save(figure, out)
            write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")
