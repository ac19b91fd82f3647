# Analysis: the tables of a study, made from its runs alone.
#   in:  RUNS_CSV, EPOCHS_CSV; NETWORK_CSV where the study's network was swept
#   out: RESULTS/tables/<table>.csv, .md and .tex, the regression's predictions of all cells, the residuals of the runs

TABLES = [
    "cells",
    "speedup",
    "effects",
    "anova",
    "scaling",
    "missing",
    "checks",
    "decomposition",
    "variance",
    "regression",
]
ANALYSIS_FILES = [
    *expand(f"{RESULTS}/tables/{{table}}.{{suffix}}", table=TABLES, suffix=["csv", "md", "tex"]),
    f"{RESULTS}/tables/regression_cells.csv",
    f"{RESULTS}/tables/residuals.csv",
]
ANALYSIS_CODE = code("analysis.study")
TABLE_FILES = [*ANALYSIS_FILES, *PREDICTION_FILES, *OUTLOOK_FILES, *NETWORK_FILES]


localrules:
    analysis,


rule tables:
    """Make all tables of the study, and what they need."""
    input:
        STANDS_ON,
        RUNS_CSV,
        NETWORK_RECORDS,
        TABLE_FILES,


rule analysis:
    """Make the tables that stand on the runs, from means to regression; list the residuals of the runs."""
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
    shell:
        """
        {WARM} analysis.study \
            --runs {input.runs:q} \
            --epochs {input.epochs:q} \
            --network {input.network:q} \
            --margin {params.margin} \
            --out {params.folder:q} \
            2>&1 | tee {log:q}
        """
