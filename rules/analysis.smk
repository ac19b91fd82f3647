# Analysis: the tables of a study, made from its runs alone.
#   in:  RUNS_CSV; NETWORK_CSV where the study's network was swept
#   out: RESULTS/tables/<table>.csv, .md and .tex, the regression's predictions of all cells, the residuals of the runs

TABLES = ["cells", "speedup", "effects", "anova", "scaling", "missing", "checks", "decomposition", "regression"]
TABLE_CODE = [
    f"{SCRIPTS}/analysis/{module}.py" for module in ["measured", "conditions", "intervals", "pooling", "tables"]
] + [f"{SCRIPTS}/common/tables.py", f"{SCRIPTS}/declared/factors.py"]
REGRESSION_CODE = [f"{SCRIPTS}/analysis/{module}.py" for module in ["regression", "terms", "leave_out"]]
ANALYSIS_CODE = [
    *TABLE_CODE,
    *REGRESSION_CODE,
    *[f"{SCRIPTS}/analysis/{module}.py" for module in ["study", *TABLES] if module != "regression"],
]


localrules:
    analysis,


rule tables:
    """Make all tables of the study, and what they need."""
    input:
        STANDS_ON,
        RUNS_CSV,
        tables=expand(
            f"{RESULTS}/tables/{{table}}.{{suffix}}",
            table=[*TABLES, *PREDICTION_TABLES],
            suffix=["csv", "md", "tex"],
        ),


rule analysis:
    """Make the tables that stand on the runs, from means to regression; list the residuals of the runs."""
    input:
        runs=RUNS_CSV,
        network=NETWORK_CSV if SWEEPS.worth_drawing else [],
        code=ANALYSIS_CODE,
    output:
        tables=expand(f"{RESULTS}/tables/{{table}}.{{suffix}}", table=TABLES, suffix=["csv", "md", "tex"]),
        cells=f"{RESULTS}/tables/regression_cells.csv",
        residuals=f"{RESULTS}/tables/residuals.csv",
    log:
        f"{RESULTS}/logs/tables.log",
    resources:
        machine=1,
    params:
        folder=subpath(output.cells, parent=True),
    shell:
        """
        {WARM} analysis.study \
            --runs {input.runs:q} \
            --network {input.network:q} \
            --out {params.folder:q} \
            2>&1 | tee {log:q}
        """
