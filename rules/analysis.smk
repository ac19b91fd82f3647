# Analysis: the tables of a study, made from its runs alone.
#   in:  RUNS_CSV, EPOCHS_CSV; NETWORK_CSV where the study's network was swept
#   out: RESULTS/tables/<table>.csv, .md and .tex, the regression's predictions of all cells, the residuals of the runs
#        RESULTS/explore.ipynb and explore.R, starts of an analysis of one's own

from declared.paper import of_runs

ANALYSIS_FILES = [
    *expand(f"{RESULTS}/tables/{{table}}.{{suffix}}", table=of_runs(CAMPAIGN.referenced), suffix=["csv", "md", "tex"]),
    f"{RESULTS}/tables/regression_cells.csv",
    f"{RESULTS}/tables/residuals.csv",
    f"{RESULTS}/tables/notes.md",
]
ANALYSIS_CODE = code("analysis.study")
STARTERS = [f"{RESULTS}/explore.ipynb", f"{RESULTS}/explore.R"]
STARTERS_CODE = code("analysis.starters.write")
TABLE_FILES = [
    *ANALYSIS_FILES,
    *PRECISION_FILES,
    *PREDICTION_FILES,
    *OUTLOOK_FILES,
    *HYBRID_FILES,
    *CROSSOVER_FILES,
    *SIMULATED_FILES,
    *NETWORK_FILES,
    *TRACES_FILES,
    *WHAT_IF_FILES,
]


localrules:
    analysis,
    starters,


rule tables:
    """Make all tables of the study, and what they need."""
    input:
        STANDS_ON,
        RUNS_CSV,
        NETWORK_RECORDS,
        TABLE_FILES,


rule analysis:
    """Make the tables that stand on the runs, from means to regression; list the residuals of the runs, and say how numbers were made."""
    input:
        runs=RUNS_CSV,
        epochs=EPOCHS_CSV,
        network=NETWORK_CSV if SWEEPS.worth_drawing else [],
        code=ANALYSIS_CODE,
    output:
        ANALYSIS_FILES,
    log:
        f"{RESULTS}/logs/tables.log",
    resources:
        machine=1,
    params:
        folder=subpath(output[0], parent=True),
        margin=CAMPAIGN.study.margin or "",
        target_accuracy=CAMPAIGN.study.target_accuracy or "",
        reference="--reference" if CAMPAIGN.referenced else "",
        replicates=CAMPAIGN.study.replicates.words if CAMPAIGN.study.replicates.adaptive else [],
    shell:
        """
        {WARM} analysis.study \
            --runs {input.runs:q} \
            --epochs {input.epochs:q} \
            --network {input.network:q} \
            --margin {params.margin} \
            --target-accuracy {params.target_accuracy} \
            --replicates {params.replicates:q} \
            {params.reference} \
            --out {params.folder:q} \
            2>&1 | tee {log:q}
        """


rule starters:
    """Write two starts of a reader's own analysis, in Python and in R."""
    input:
        runs=RUNS_CSV,
        code=STARTERS_CODE,
    output:
        STARTERS,
    log:
        f"{RESULTS}/logs/starters.log",
    resources:
        machine=1,
    params:
        title=lambda _: CAMPAIGN.study.title,  # a text is no pattern: it may hold braces
        question=lambda _: CAMPAIGN.study.question,
        folder=subpath(output[0], parent=True),
    shell:
        """
        {WARM} analysis.starters.write \
            --title {params.title:q} \
            --question {params.question:q} \
            --runs {input.runs:q} \
            --out {params.folder:q} \
            2>&1 | tee {log:q}
        """
