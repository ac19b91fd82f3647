"""Say whether a study scales weakly or strongly: which batch stays the same over nodes or devices.

Strong scaling keeps the samples of an optimizer step (the global batch). Weak scaling keeps the samples of a
replica (the local batch). An epoch has the same samples in both, so only steps scale weakly: an ideal epoch
takes less time on more devices.
"""

import pandas as pd

from analysis.level_words import level_text
from analysis.records import groups_by, varying, with_batch_numbers
from common.notes import Note

KIND_TITLES = {
    "weak scaling": "weak scaling of steps (fixed batch)",
    "strong scaling": "strong scaling (fixed global batch)",
}
FIXED_BATCHES = (
    ("effective_batch", "strong", "global batch size {}"),
    ("local_batch", "weak", "batch size {} per replica, and the same samples in an epoch"),
)


def scaling_phrase(scaling: Note | None) -> str:
    """Return the kind of scaling as the end of a heading, such as ", strong scaling"; "" without one."""
    if scaling is None:
        return ""
    kind = scaling.facts["kind"]
    return f", {KIND_TITLES.get(kind, kind)}"


def batch_scaling(runs: pd.DataFrame, factor: str) -> Note | None:
    """Say which batch stays the same over the levels of a factor; None if scaling is neither strong nor weak.

    The fact `kind` is strong scaling, weak scaling or, if the batch scope varies, both.
    """
    cells = runs.drop_duplicates("cell").reset_index(drop=True)
    other_factors = [name for name in varying(cells) if name != factor]
    groups = [group for _, group in groups_by(cells, other_factors)]
    series = [group for group in groups if group["n_devices"].nunique() > 1]
    kinds = [
        next(((kind, text) for column, kind, text in FIXED_BATCHES if len(set(group[column])) == 1), ("", ""))
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
    sentence = "; ".join(f"{kind} scaling: {text}" for kind, text in parts.items())
    return Note(
        "batch-scaling", f"{sentence[0].upper()}{sentence[1:]}.", kind=f"{' and '.join(parts)} scaling"
    )
