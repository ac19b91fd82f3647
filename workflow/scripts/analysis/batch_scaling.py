"""Say which batch stays the same over nodes or devices: the global batch or the batch per replica.

Strong scaling keeps the samples of an optimizer step (the global batch). A fixed batch per replica is not
called weak scaling: only steps scale weakly, while an epoch has the same samples on any number of devices, so
that an ideal epoch takes less time on more of them.
"""

import pandas as pd

from analysis.level_words import level_text
from analysis.records import groups_by, varying, with_batch_numbers
from common.notes import Note

# By the column that is constant: the kind of scaling, and its explanation.
FIXED_BATCHES = {
    "effective_batch": ("strong scaling (fixed global batch)", "batch size {}"),
    "local_batch": ("fixed batch per replica", "batch size {}, and the same samples in an epoch"),
}


def scaling_phrase(scaling: Note | None) -> str:
    """Return the kind of scaling as the end of a heading, with a comma before it; "" without one."""
    return f", {scaling.facts['kind']}" if scaling else ""


def batch_scaling(runs: pd.DataFrame, factor: str) -> Note | None:
    """Say which batch stays the same over the levels of a factor; None if neither batch does.

    The fact `kind` is one of FIXED_BATCHES or, if the batch scope varies, both.
    """
    cells = runs.drop_duplicates("cell").reset_index(drop=True)
    other_factors = [name for name in varying(cells) if name != factor]
    groups = [group for _, group in groups_by(cells, other_factors)]
    series = [group for group in groups if group["n_devices"].nunique() > 1]
    kinds = [
        next((kind for column, kind in FIXED_BATCHES.items() if len(set(group[column])) == 1), ("", ""))
        for group in series
    ]
    if ("", "") in kinds:
        return None
    parts: dict[str, str] = {}
    numbers = with_batch_numbers(cells)["batch_size"]
    for kind, text in dict.fromkeys(kinds):
        members = [group for group, named in zip(series, kinds, strict=True) if named == (kind, text)]
        sizes = [level_text(size) for size in sorted({int(numbers[group.index[0]]) for group in members})]
        listed = " or ".join(filter(None, [", ".join(sizes[:-1]), sizes[-1]]))
        parts[kind] = text.format(listed)
    if not parts:
        return None
    sentence = "; ".join(f"{kind}: {text}" for kind, text in parts.items())
    return Note("batch-scaling", f"{sentence[0].upper()}{sentence[1:]}.", kind=" and ".join(parts))
