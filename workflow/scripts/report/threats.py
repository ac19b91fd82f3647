"""State the threats to validity of a study that its records show."""

from collections.abc import Iterator

import pandas as pd

from analysis import checks, conditions
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.records import treatments, unsuccessful, varying
from common.run_status import RunStatus
from declared.records import WARNING_SEPARATOR
from network import fit
from report import elsewhere
from report.facts import Facts, texts
from report.latex import items, to_latex

MIN_REPLICATES = 5
MIN_EPOCHS = 50
MAX_WARNINGS = 5  # Most warnings of libraries that are quoted.


def write_threats(facts: Facts) -> str:
    """Return the list of threats to validity in LaTeX."""
    return items(threat_notes(facts))


def threat_notes(facts: Facts) -> Iterator[str]:
    """Yield the threats to validity, each in a sentence."""
    ok = facts.ok
    if ok.empty:
        yield facts.sentence("no-success")
        return
    placements = set(ok["placement"])
    yield from (facts.sentence(f"{name}-nodes") for name in ("emulated", "virtual") if name in placements)
    yield from _origin_threats(facts)
    notes = (conditions.one_allocation_note(facts.runs), conditions.single_run_steps_note(facts.runs))
    yield from map(to_latex, filter(None, notes))
    counts = ok.groupby("cell").size()
    if counts.min() < MIN_REPLICATES:
        yield facts.sentence("few-replicates", least=int(counts.min()), all_cells=counts.nunique() == 1)
    yield from _failed_checks(facts)
    if "nodes" in varying(facts.runs):
        yield to_latex(conditions.work_note(facts.runs))
    if n_crowded := int(ok["oversubscribed"].fillna(False).astype(bool).sum()):
        yield facts.sentence("oversubscribed", runs=n_crowded)
    if (largest := ok["other_cpu_share"].max()) > conditions.NOTABLE_OTHER_SHARE:
        yield facts.sentence("other-programs", share=largest)
    if n_stolen := int((ok["steal_share"] > (share := conditions.NOTABLE_STEAL_SHARE)).sum()):
        yield facts.sentence("cpu-steal", share=share, runs=n_stolen, successful=len(ok))
    yield from _warning_notes(facts)
    if facts.network is not None and len(fit.valid_repetitions(facts.network)):
        yield facts.sentence("network-benchmarked-once")
    if (unsuccessful(facts.runs)["status"] != RunStatus.OOM).any():
        yield facts.sentence("failed-runs")
    if ok["epochs"].max() < MIN_EPOCHS and not facts.study.imported:
        yield facts.sentence("short-training")


def _origin_threats(facts: Facts) -> Iterator[str]:
    """Yield the threats that follow from where the runs were measured."""
    imported = facts.study.imported
    if imported and imported.campaigns:
        yield elsewhere.COMBINED
    elif imported:
        yield facts.sentence("measured-elsewhere")
        yield from map(to_latex, elsewhere.accepted_notes(imported))
    else:
        has_frameworks, has_treatments = facts.runs["framework"].nunique() > 1, bool(treatments(facts.runs))
        compared = "frameworks" if has_frameworks else "treatments" if has_treatments else ""
        yield facts.sentence("one-site", compared=compared, site=facts.site.name if facts.site else "")


def _failed_checks(facts: Facts) -> Iterator[str]:
    """Yield the assumptions that failed a check, with the consequence for the conclusions."""
    if facts.checks is None or not {"assumption", "verdict", "p", "run_id"} <= set(facts.checks):
        return
    failed = facts.checks[(facts.checks["p"] < SIGNIFICANCE_LEVEL) & facts.checks["run_id"].isna()]
    for row in failed.itertuples():
        assumption = str(row.assumption)
        is_lattice = assumption == checks.NORMAL and checks.lattice_note(checks.residuals(facts.runs))
        consequence = texts()["consequence"].get("lattice" if is_lattice else assumption, "")
        stated = {"assumption": assumption, "verdict": row.verdict, "p": row.p}
        yield facts.sentence("failed-check", **stated, consequence=consequence)


def _warning_notes(facts: Facts) -> Iterator[str]:
    """Yield the warnings of libraries in successful runs, the most frequent first."""
    warnings: pd.DataFrame = facts.ok[["framework", "warnings"]].dropna()
    warnings = warnings.assign(warnings=warnings["warnings"].str.split(WARNING_SEPARATOR, regex=False))
    by_text = warnings.explode("warnings").groupby("warnings")["framework"]
    counts = by_text.size().sort_values(ascending=False, kind="stable")
    for text, count in counts.head(MAX_WARNINGS).items():
        frameworks = sorted(by_text.get_group(text).unique())
        yield facts.sentence("library-warning", warning=text, runs=count, frameworks=frameworks)
    if (n_more := len(counts) - MAX_WARNINGS) > 0:
        yield facts.sentence("more-library-warnings", warnings=n_more)
