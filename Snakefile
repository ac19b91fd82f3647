"""Ringside: a comparative study of distributed training, from install to paper figures.

    plan -> environments -> datasets -> network -> strategies -> replication -> runs -> records -> traces, prediction, analysis -> figures -> report, paper

config/config.yaml says which study and which site; rules/ has one file per stage, in this order,
in which data flows; docs/architecture.md has the stages in the order of their imports.
"""

from snakemake.utils import min_version

min_version("9.20")


include: "rules/common.smk"
include: "rules/plan.smk"


if CAMPAIGN.is_measuring:

    include: "rules/environments.smk"
    include: "rules/datasets.smk"


include: "rules/network.smk"
include: "rules/strategies.smk"
include: "rules/replication.smk"


if CAMPAIGN.is_measuring:

    include: "rules/runs.smk"


if CAMPAIGN.mode != "published" or CAMPAIGN.is_combined:

    include: "rules/records.smk"


include: "rules/traces.smk"
include: "rules/prediction.smk"
include: "rules/analysis.smk"
include: "rules/figures.smk"
include: "rules/provenance.smk"
include: "rules/report.smk"
include: "rules/paper.smk"


rule all:
    """Make figures, tables and their manifest: what `snakemake` does without a target. Report and paper are targets."""
    default_target: True
    input:
        rules.figures.input,
