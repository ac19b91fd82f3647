"""Compare two campaigns in a table and a figure."""

from pathlib import Path

from analysis import tables
from common.files import write_text
from comparison.changes import differing, not_compared, summary, table
from comparison.draw import draw
from comparison.matched import read
from declared.imported import campaign_name
from figures import style


def compare_campaigns(base: str, other_campaign: str) -> Path:
    """Write table and figure to results/comparison/BASE--OTHER/, and print what changed.

    Args:
        base: Campaign that the other one is compared with: a folder with runs.csv, or a study's name.
        other_campaign: Campaign that is compared with the base: a folder with runs.csv, or a study's name.

    Returns:
        The path of the files, without their suffixes.

    Raises:
        InputError: If a campaign has no successful run, or no cell can be compared.
    """
    compared = read(base, other_campaign)
    result = table(compared)
    names = f"{campaign_name(base)}--{campaign_name(other_campaign)}"
    out = Path("results", "comparison", names, "comparison")
    tables.write(result, out)
    figure, caption = draw(compared, result.data)
    style.save(figure, out)
    write_text(out.with_name(f"{out.name}.caption.md"), caption + "\n")
    lines = (
        summary(compared, result.data),
        compared.algorithms,
        differing(compared),
        not_compared(compared),
        f"wrote {out}.md",
    )
    print(*filter(None, lines), sep="\n")
    return out
