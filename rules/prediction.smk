# Prediction: epoch times from computation on one node and the network's sweep, held against cells that were not used to fit.
#   in:  RUNS_CSV, NETWORK_CSV; the environment of Extra-P where the study asks for it (ancient: its digest is in the path)
#   out: RESULTS/tables/prediction.* and prediction_cells.csv, RESULTS/tables/outlook.* and outlook_curves.csv: where the network was
#        swept and the study has two numbers of nodes; RESULTS/tables/hybrid.*: where ranks may be unlike
#        RESULTS/tables/crossover.*: where the network was swept and strategies vary on several nodes
#   in:  RUNS_CSV, REPLAY_STEPS_CSV; NETWORK_CSV where the network was swept
#   out: RESULTS/tables/what_if.*, where the study has traced runs

from common.files import shown
from declared.frameworks import load_framework
from environments.identity import environment_stamp

PREDICTED = SWEEPS.worth_drawing and len(CAMPAIGN.study.factors["nodes"]) > 1
DESCRIBED = ancient([shown(load_framework(name).file) for name in CAMPAIGN.study.factors["framework"]])
PREDICTION_CODE = [*code("prediction.held_out", "prediction.extra_p", "models.families.*"), *DESCRIBED]
OUTLOOK_CODE = [*code("prediction.outlook", "models.families.*"), *DESCRIBED]
PREDICTION_FILES, OUTLOOK_FILES = (
    [f"{RESULTS}/tables/{name}" for name in names] if PREDICTED else []
    for names in [
        ["prediction.csv", "prediction.md", "prediction.tex", "prediction_cells.csv"],
        ["outlook.csv", "outlook.md", "outlook.tex", "outlook_curves.csv"],
    ]
)
HYBRID_CODE = [*code("prediction.hybrid", "models.families.*"), *DESCRIBED]
HYBRID_FILES = [
    f"{RESULTS}/tables/hybrid.{suffix}"
    for suffix in ["csv", "md", "tex"]
    if CAMPAIGN.study.unlike or CAMPAIGN.site.unlike
]
CROSSOVER_CODE = [*code("prediction.crossover", "models.families.*"), *DESCRIBED]
CROSSOVER_FILES = (
    expand(f"{RESULTS}/tables/crossover.{{suffix}}", suffix=["csv", "md", "tex"])
    if PREDICTED and len(CAMPAIGN.study.factors["parallelism"]) > 1
    else []
)
WHAT_IF_CODE = [*code("prediction.what_if", "models.families.*"), *DESCRIBED]
WHAT_IF_FILES = expand(f"{RESULTS}/tables/what_if.{{suffix}}", suffix=["csv", "md", "tex"]) if REPLAY_STEPS_CSV else []
EXTRA_P = or_say_so(lambda: str(environment_stamp(CACHE, "extrap"))) if PREDICTED and CAMPAIGN.study.extra_p else []


localrules:
    prediction,
    outlook,
    hybrid,


if EXTRA_P and not is_made(EXTRA_P):

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
            {WARM} environments.build \
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
        code=PREDICTION_CODE,
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
        {WARM} prediction.held_out \
            --runs {input.runs:q} \
            --network {input.network:q} \
            --cells {output.cells:q} \
            --out {params.stem:q} \
            {params.extra_p:q} \
            2>&1 | tee {log:q}
        """


rule outlook:
    """How many nodes are worth it at links of 1, 10, 25 and 100 Gbit/s; the curves that a figure shows."""
    input:
        runs=RUNS_CSV,
        network=NETWORK_CSV,
        code=OUTLOOK_CODE,
    output:
        csv=f"{RESULTS}/tables/outlook.csv",
        markdown=f"{RESULTS}/tables/outlook.md",
        latex=f"{RESULTS}/tables/outlook.tex",
        curves=f"{RESULTS}/tables/outlook_curves.csv",
    log:
        f"{RESULTS}/logs/tables/outlook.log",
    resources:
        machine=1,
    params:
        records=lambda wildcards, input: str(Path(input.runs).parent),
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
    shell:
        """
        {WARM} prediction.outlook \
            --from {params.records:q} \
            --out {params.stem:q} \
            --curves {output.curves:q} \
            2>&1 | tee {log:q}
        """


rule hybrid:
    """Does adding a slower device pay? Epoch times of unlike ranks, predicted and measured."""
    input:
        runs=RUNS_CSV,
        network=NETWORK_CSV if SWEEPS.worth_drawing else [],
        code=HYBRID_CODE,
    output:
        csv=f"{RESULTS}/tables/hybrid.csv",
        markdown=f"{RESULTS}/tables/hybrid.md",
        latex=f"{RESULTS}/tables/hybrid.tex",
    log:
        f"{RESULTS}/logs/tables/hybrid.log",
    resources:
        machine=1,
    params:
        stem=lambda wildcards, output: output.csv.removesuffix(".csv"),
    shell:
        """
        {WARM} prediction.hybrid \
            --runs {input.runs:q} \
            --network {input.network:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """


if CROSSOVER_FILES:

    localrules:
        crossover,

    rule crossover:
        """Which strategy is fastest on which links, predicted from one node and the sweeps."""
        input:
            runs=RUNS_CSV,
            network=NETWORK_CSV,
            code=CROSSOVER_CODE,
        output:
            CROSSOVER_FILES,
        log:
            f"{RESULTS}/logs/tables/crossover.log",
        resources:
            machine=1,
        params:
            stem=subpath(output[0], strip_suffix=".csv"),
        shell:
            """
            {WARM} prediction.crossover \
                --runs {input.runs:q} \
                --network {input.network:q} \
                --out {params.stem:q} \
                2>&1 | tee {log:q}
            """


if WHAT_IF_FILES:

    localrules:
        what_if,

    rule what_if:
        """Replay traced steps with one thing changed, and hold the answers against experiment."""
        input:
            runs=RUNS_CSV,
            network=NETWORK_CSV if SWEEPS.worth_drawing else [],
            steps=REPLAY_STEPS_CSV,
            code=WHAT_IF_CODE,
        output:
            WHAT_IF_FILES,
        log:
            f"{RESULTS}/logs/tables/what_if.log",
        resources:
            machine=1,
        params:
            stem=subpath(output[0], strip_suffix=".csv"),
        shell:
            """
            {WARM} prediction.what_if \
                --runs {input.runs:q} \
                --network {input.network:q} \
                --steps {input.steps:q} \
                --out {params.stem:q} \
                2>&1 | tee {log:q}
            """
