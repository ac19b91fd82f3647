"""List the records that rules require in a study with an interval target, as far as decided."""

from collections.abc import Callable
from pathlib import Path

from plan.campaign import Campaign
from plan.decisions import read_decision


class Required:
    """The required records of a campaign.

    `decision` returns the file with the decision after a block. It calls Snakemake's `checkpoints.get`, which
    raises until the file is up to date. Snakemake then evaluates the rule again.
    """

    def __init__(self, campaign: Campaign, decision: Callable[[int], str]) -> None:
        self._campaign, self._decision = campaign, decision
        self._paths: dict[tuple[int | None, tuple[tuple[str, int], ...]], list[str]] = {}

    def record_paths(self, last: int | None = None) -> list[str]:
        """Return the paths of the records of all decided blocks, up to the block `last` if it is given."""
        rule = self._campaign.study.replicates
        decisions = []
        # The last decision, after block at_most, reports which cells have reached the target.
        for block in range(rule.at_least, last or rule.at_most + 1):
            file = Path(self._decision(block))
            decisions.append((str(file), file.stat().st_mtime_ns))
            decision = read_decision(file, rule)
            if decision is None or not decision.refined:
                break
        key = (last, tuple(decisions))
        if key not in self._paths:  # Many rules call this after every decision.
            now = self._campaign.with_current_decisions()
            self._paths[key] = [
                path for run, path in now.record_paths.items() if not last or now.by_id[run].block <= last
            ]
        return self._paths[key]

    def record_paths_of_block(self, block: int) -> Callable[[object], list[str]]:
        """Return an input function for Snakemake that lists the paths of one block's records.

        Raises:
            InputError: If the campaign has no such block.
        """
        runs = self._campaign.of_block(block).by_id
        return lambda _: [path for path in self.record_paths(block) if Path(path).parts[-3] in runs]
