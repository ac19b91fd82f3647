"""The records that rules require where replicates are chosen by precision, as far as it is decided which they are."""

from collections.abc import Callable
from pathlib import Path

from plan.campaign import Campaign
from plan.decisions import read


class Required:
    """Of a campaign. `decision`: block -> the file of the decision after it; raises until it is there and stands (Snakemake's checkpoints.get,
    which makes Snakemake ask again when it is)."""

    def __init__(self, campaign: Campaign, decision: Callable[[int], str]) -> None:
        self._campaign, self._decision = campaign, decision
        self._known: dict[tuple[int | None, tuple[tuple[str, int], ...]], list[str]] = {}

    def records(self, last: int | None = None) -> list[str]:
        """Those up to the block `last`, or all."""
        rule = self._campaign.study.replicates
        made = []
        for block in range(rule.at_least, last or rule.at_most + 1):  # all: that after at_most says what was reached
            file = Path(self._decision(block))
            made.append((str(file), file.stat().st_mtime_ns))
            decision = read(file, rule)
            if decision is None or not decision.refined:
                break
        key = (last, tuple(made))
        if key not in self._known:  # many rules ask, after every decision
            now = self._campaign.now()
            self._known[key] = [path for run, path in now.records.items() if not last or now.by_id[run].block <= last]
        return self._known[key]

    def of_block(self, block: int) -> Callable[[object], list[str]]:
        """What gives those of one block. InputError when there is no such block."""
        runs = self._campaign.of_block(block).by_id
        return lambda _: [path for path in self.records(block) if Path(path).parts[-3] in runs]
