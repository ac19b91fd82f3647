# Analysis: the tables of a study, made from its runs alone.
#   in:  RUNS_CSV; NETWORK_CSV where the study's network was swept
#   out: RESULTS/tables/<table>.csv, .md and .tex, the regression's predictions of all cells, the residuals of the runs

TABLES = ["cells", "speedup", "effects", "anova", "scaling", "missing"]
TABLE_CODE = [
    f"{SCRIPTS}/analysis/{module}.py" for module in ["measured", "conditions", "intervals", "pooling", "tables"]
] + [f"{SCRIPTS}/common/tables.py", f"{SCRIPTS}/plan/factors.py"]
REGRESSION_CODE = [f"{SCRIPTS}/analysis/{module}.py" for module in ["regression", "terms", "leave_out"]]
ALSO_CODE = {"scaling": [*REGRESSION_CODE, f"{SCRIPTS}/analysis/effects.py", f"{SCRIPTS}/analysis/speedup.py"]}


localrules:
    table,
    checks,
    decomposition,
    regression,


rule tables:
    """All tables of the study."""
    input:
        STANDS_ON,
        RUNS_CSV,
        tables=expand(
            f"{RESULTS}/tables/{{table}}.{{suffix}}",
            table=[*TABLES, "checks", "decomposition", "regression", *PREDICTION_TABLES],
            suffix=["csv", "md", "tex"],
        ),


rule table:
    """Make one table from the runs."""
    input:
        runs=RUNS_CSV,
        script=f"{SCRIPTS}/analysis/{{table}}.py",
        code=lambda wildcards: TABLE_CODE + ALSO_CODE.get(wildcards.table, []),
    output:
        csv=f"{RESULTS}/tables/{{table}}.csv",
        markdown=f"{RESULTS}/tables/{{table}}.md",
        latex=f"{RESULTS}/tables/{{table}}.tex",
    log:
        f"{RESULTS}/logs/tables/{{table}}.log",
    wildcard_constraints:
        table="|".join(TABLES),
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
    shell:
        """
        python -m analysis.{wildcards.table} \
            --runs {input.runs:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """


rule checks:
    """Check what intervals and tests assume; list the residuals of the runs."""
    input:
        runs=RUNS_CSV,
        script=f"{SCRIPTS}/analysis/checks.py",
        code=TABLE_CODE,
    output:
        csv=f"{RESULTS}/tables/checks.csv",
        markdown=f"{RESULTS}/tables/checks.md",
        latex=f"{RESULTS}/tables/checks.tex",
        residuals=f"{RESULTS}/tables/residuals.csv",
    log:
        f"{RESULTS}/logs/tables/checks.log",
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
    shell:
        """
        python -m analysis.checks \
            --runs {input.runs:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """


rule decomposition:
    """Take the contrast of treatments apart, beside what the network alone would do."""
    input:
        runs=RUNS_CSV,
        network=NETWORK_CSV if SWEEPS.worth_drawing else [],
        script=f"{SCRIPTS}/analysis/decomposition.py",
        code=[*TABLE_CODE, f"{SCRIPTS}/analysis/effects.py"],
    output:
        csv=f"{RESULTS}/tables/decomposition.csv",
        markdown=f"{RESULTS}/tables/decomposition.md",
        latex=f"{RESULTS}/tables/decomposition.tex",
    log:
        f"{RESULTS}/logs/tables/decomposition.log",
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
    shell:
        """
        python -m analysis.decomposition \
            --runs {input.runs:q} \
            --network {input.network:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """


rule regression:
    """Fit the linear and the quadratic model of epoch time and of throughput."""
    input:
        runs=RUNS_CSV,
        code=[*TABLE_CODE, *REGRESSION_CODE],
    output:
        csv=f"{RESULTS}/tables/regression.csv",
        markdown=f"{RESULTS}/tables/regression.md",
        latex=f"{RESULTS}/tables/regression.tex",
        cells=f"{RESULTS}/tables/regression_cells.csv",
    log:
        f"{RESULTS}/logs/tables/regression.log",
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
    shell:
        """
        python -m analysis.regression \
            --runs {input.runs:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """
