# Figures: drawn from the runs and epochs of a study alone.
#   in:  RUNS_CSV, EPOCHS_CSV
#   out: RESULTS/figures/<figure>.pdf, .svg, .png and .caption.md

FIGURES = ["epoch_time", "by_batch_size", "by_nodes", "accuracy", "residuals", "regression"]
FIGURE_CODE = (
    [f"{SCRIPTS}/figures/{module}.py" for module in ["style", "panels", "series"]]
    + [
        f"{SCRIPTS}/analysis/{module}.py"
        for module in ["measured", "conditions", "intervals", "pooling", "tables", "speedup", "checks"]
    ]
    + [f"{SCRIPTS}/common/tables.py"]
    + REGRESSION_CODE
)


rule figures:
    """All figures and tables of the study."""
    input:
        STANDS_ON,
        RUNS_CSV,
        EPOCHS_CSV,
        figures=expand(
            f"{RESULTS}/figures/{{figure}}.{{suffix}}",
            figure=[*FIGURES, *PREDICTION_FIGURES],
            suffix=["pdf", "svg", "png", "caption.md"],
        ),
        tables=rules.tables.input.tables,
        network=NETWORK_PRODUCTS,


rule figure:
    """Draw one figure with its caption."""
    input:
        runs=RUNS_CSV,
        epochs=EPOCHS_CSV,
        script=f"{SCRIPTS}/figures/{{figure}}.py",
        code=FIGURE_CODE,
    output:
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        svg=f"{RESULTS}/figures/{{figure}}.svg",
        png=f"{RESULTS}/figures/{{figure}}.png",
        caption=f"{RESULTS}/figures/{{figure}}.caption.md",
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    wildcard_constraints:
        figure="|".join(FIGURES),
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.pdf.removesuffix(".pdf"),
    shell:
        """
        python -m figures.{wildcards.figure} \
            --runs {input.runs:q} \
            --epochs {input.epochs:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """
