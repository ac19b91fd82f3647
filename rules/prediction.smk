# Prediction: epoch times from computation on one node and the network's sweep, held against cells that were not used to fit.
#   in:  RUNS_CSV, NETWORK_CSV; the environment of Extra-P where the study asks for it (ancient: its digest is in the path)
#   out: RESULTS/tables/prediction.* and prediction_cells.csv, RESULTS/figures/prediction.*; RESULTS/{tables,figures}/outlook.*
# Made where the network was swept and the study has two numbers of nodes.

from environments.description import environment_stamp

PREDICTED = SWEEPS.worth_drawing and len(CAMPAIGN.study.factors["nodes"]) > 1
PREDICTION_CODE = (
    [f"{SCRIPTS}/prediction/{module}.py" for module in ["exchange", "law", "physics", "methods", "held_out"]]
    + [
        f"{SCRIPTS}/analysis/{module}.py"
        for module in ["measured", "conditions", "intervals", "pooling", "tables", "terms"]
    ]
    + [f"{SCRIPTS}/network/fit.py", f"{SCRIPTS}/models/graph.py", f"{SCRIPTS}/common/tables.py"]
)
PREDICTION_LOOKS = [f"{SCRIPTS}/figures/{module}.py" for module in ["style", "panels"]]
PREDICTION_TABLES = ["prediction", "outlook"] if PREDICTED else []
PREDICTION_FIGURES = ["prediction", "outlook"] if PREDICTED else []
EXTRA_P = (
    or_say_so(lambda: str(environment_stamp(CACHE, "extrap"))) if PREDICTED and CAMPAIGN.study.extra_p else []
)


localrules:
    prediction,
    prediction_figure,
    outlook,


if EXTRA_P:

    localrules:
        extra_p,

    rule extra_p:
        """Build and test the environment of Extra-P, in which only predictions are made."""
        output:
            stamp=EXTRA_P,
        log:
            f"{RESULTS}/logs/environments/extrap.log",
        priority: 2 * 10**9
        resources:
            machine=1,
        params:
            site=SITE,
        shell:
            """
            python -m environments.build \
                --environment extrap \
                --site {params.site:q} \
                --out {output.stamp:q} \
                2>&1 | tee {log:q}
            """


rule prediction:
    """Predict the cells that were left out, by the physical model, by regression and by Extra-P; the errors of each."""
    input:
        runs=RUNS_CSV,
        network=NETWORK_CSV,
        code=[*PREDICTION_CODE, f"{SCRIPTS}/prediction/extra_p.py"],
        extra_p=ancient(EXTRA_P),
    output:
        csv=f"{RESULTS}/tables/prediction.csv",
        markdown=f"{RESULTS}/tables/prediction.md",
        latex=f"{RESULTS}/tables/prediction.tex",
        cells=f"{RESULTS}/tables/prediction_cells.csv",
    log:
        f"{RESULTS}/logs/tables/prediction.log",
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
        extra_p=["--extra-p", EXTRA_P] if EXTRA_P else [],
    shell:
        """
        python -m prediction.held_out \
            --runs {input.runs:q} \
            --network {input.network:q} \
            --cells {output.cells:q} \
            --out {params.stem:q} \
            {params.extra_p:q} \
            2>&1 | tee {log:q}
        """


rule prediction_figure:
    """Draw predicted against measured epoch times of the cells that were left out."""
    input:
        runs=RUNS_CSV,
        cells=f"{RESULTS}/tables/prediction_cells.csv",
        script=f"{SCRIPTS}/figures/prediction.py",
        code=[*PREDICTION_CODE, *PREDICTION_LOOKS],
    output:
        pdf=f"{RESULTS}/figures/prediction.pdf",
        svg=f"{RESULTS}/figures/prediction.svg",
        png=f"{RESULTS}/figures/prediction.png",
        caption=f"{RESULTS}/figures/prediction.caption.md",
    log:
        f"{RESULTS}/logs/figures/prediction.log",
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.pdf.removesuffix(".pdf"),
    shell:
        """
        python -m figures.prediction \
            --runs {input.runs:q} \
            --cells {input.cells:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """


rule outlook:
    """How many nodes are worth it at links of 1, 10, 25 and 100 Gbit/s: table and figure."""
    input:
        runs=RUNS_CSV,
        network=NETWORK_CSV,
        script=f"{SCRIPTS}/prediction/outlook.py",
        code=[
            *PREDICTION_CODE,
            *PREDICTION_LOOKS,
            f"{SCRIPTS}/prediction/extrapolate.py",
            f"{SCRIPTS}/figures/outlook.py",
        ],
    output:
        csv=f"{RESULTS}/tables/outlook.csv",
        markdown=f"{RESULTS}/tables/outlook.md",
        latex=f"{RESULTS}/tables/outlook.tex",
        pdf=f"{RESULTS}/figures/outlook.pdf",
        svg=f"{RESULTS}/figures/outlook.svg",
        png=f"{RESULTS}/figures/outlook.png",
        caption=f"{RESULTS}/figures/outlook.caption.md",
    log:
        f"{RESULTS}/logs/tables/outlook.log",
    resources:
        machine=1,
    params:
        records=lambda wildcards, input: str(Path(input.runs).parent),
        table=lambda wildcards, output: output.csv.removesuffix(".csv"),
        figure=lambda wildcards, output: output.pdf.removesuffix(".pdf"),
    shell:
        """
        python -m prediction.outlook \
            --from {params.records:q} \
            --out {params.table:q} \
            --figure {params.figure:q} \
            2>&1 | tee {log:q}
        """
