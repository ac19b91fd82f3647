# Figures: those that the study declares (its key `figures`), else the usual ones; workflow/scripts/declared/figures.py has the kinds.
#   in:  RUNS_CSV, EPOCHS_CSV; what KINDS says that a kind reads beside, as far as there is any
#   out: RESULTS/figures/<figure>.pdf, .svg, .png and .caption.md

from declared.figures import KINDS

FIGURES = CAMPAIGN.study.drawn(SWEEPS.worth_drawing, CAMPAIGN.traced, CAMPAIGN.referenced)
ASKED = {figure.name: figure for figure in FIGURES}
POWER_CSV = str(Path(RUNS_CSV).with_name("power.csv"))
READABLE = {
    "power": [POWER_CSV] if CAMPAIGN.mode != "published" or Path(POWER_CSV).exists() else [],
    "network": [NETWORK_CSV] if SWEEPS.worth_drawing else [],
    "predictions": [f"{RESULTS}/tables/prediction_cells.csv"] if PREDICTED else [],
    "phases": PHASES_CSV,
    "trace_steps": TRACE_STEPS_CSV,
    "what_if": WHAT_IF_FILES[:1],
    "crossover": CROSSOVER_FILES[:1],
    "simulated": SIMULATED_FILES[:1],
    "outlook": [f"{RESULTS}/tables/outlook{end}" for end in [".csv", "_curves.csv", ".md"]] if PREDICTED else [],
}
DRAWN_BY = {name: code("figures.draw", f"figures.{figure.kind}") for name, figure in ASKED.items()}
BESIDE = {
    name: {what: files if what in KINDS[figure.kind].reads else [] for what, files in READABLE.items()}
    for name, figure in ASKED.items()
}
FIGURE_FILES = {
    name: expand(f"{RESULTS}/figures/{name}.{{suffix}}", suffix=["pdf", "svg", "png", "caption.md"]) for name in ASKED
}
# Where no figure was made yet, the first block is drawn as soon as it is there, before the second one begins.
PREVIEW = (
    [f"{RESULTS}/preview/block-{CAMPAIGN.blocks[0]}"]
    if CAMPAIGN.mode == "campaign"
    and len(CAMPAIGN.blocks) > 1
    and not any(Path(file).exists() for files in FIGURE_FILES.values() for file in files)
    else []
)

# Where figures are most likely due, what they import is imported while Snakemake looks at what is.
if workflow.is_main_process and not DRY_RUN and warm.VARIABLE not in os.environ:
    if Path(RUNS_CSV).exists() and not all(Path(file).exists() for files in FIGURE_FILES.values() for file in files):
        os.environ[warm.VARIABLE] = warm.start(warm.HEAVY)


localrules:
    figure,


rule figures:
    """Make all figures and tables of the study, and what they need."""
    input:
        STANDS_ON,
        PREVIEW,
        RUNS_CSV,
        EPOCHS_CSV,
        figures=[file for files in FIGURE_FILES.values() for file in files],
        tables=[*NETWORK_RECORDS, *TABLE_FILES],
        manifest=f"{RESULTS}/manifest.json",


if PREVIEW:

    localrules:
        preview,

    rule preview:
        """Draw what the first block says, as `ringside preview` does. If that fails, the campaign goes on."""
        input:
            CAMPAIGN.records_of_block(CAMPAIGN.blocks[0]),
        output:
            done=touch(PREVIEW[0]),
        log:
            f"{RESULTS}/logs/preview.log",
        priority: 10**9
        resources:
            machine=1,
        params:
            study=STUDY,
            site=SITE,
            preview=f"{RESULTS}/preview",
        shell:
            """
            if {WARM} report.preview --study {params.study:q} --site {params.site:q} >{log:q} 2>&1; then
                echo "first figures, of the first block: {params.preview}/figures"
            else
                echo "no figures of the first block yet: see {log}"
            fi
            """


rule figure:
    """Draw one figure with its caption."""
    input:
        runs=RUNS_CSV,
        epochs=EPOCHS_CSV,
        network=lambda wildcards: BESIDE[wildcards.figure]["network"],
        predictions=lambda wildcards: BESIDE[wildcards.figure]["predictions"],
        outlook=lambda wildcards: BESIDE[wildcards.figure]["outlook"],
        power=lambda wildcards: BESIDE[wildcards.figure]["power"],
        phases=lambda wildcards: BESIDE[wildcards.figure]["phases"],
        trace_steps=lambda wildcards: BESIDE[wildcards.figure]["trace_steps"],
        what_if=lambda wildcards: BESIDE[wildcards.figure]["what_if"],
        crossover=lambda wildcards: BESIDE[wildcards.figure]["crossover"],
        simulated=lambda wildcards: BESIDE[wildcards.figure]["simulated"],
        precision=PRECISION_FILES[:1],
        code=lambda wildcards: DRAWN_BY[wildcards.figure],
    output:
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        svg=f"{RESULTS}/figures/{{figure}}.svg",
        png=f"{RESULTS}/figures/{{figure}}.png",
        caption=f"{RESULTS}/figures/{{figure}}.caption.md",
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    wildcard_constraints:
        figure="|".join(ASKED),
    resources:
        machine=1,
    params:
        asked=lambda wildcards: ASKED[wildcards.figure].to_json(),
        outlook=lambda wildcards, input: input.outlook[:1],
        stem=lambda wildcards, output: output.pdf.removesuffix(".pdf"),
    shell:
        """
        {WARM} figures.draw \
            --asked {params.asked:q} \
            --runs {input.runs:q} \
            --epochs {input.epochs:q} \
            --network {input.network:q} \
            --predictions {input.predictions:q} \
            --outlook {params.outlook:q} \
            --power {input.power:q} \
            --phases {input.phases:q} \
            --trace-steps {input.trace_steps:q} \
            --what-if {input.what_if:q} \
            --crossover {input.crossover:q} \
            --simulated {input.simulated:q} \
            --precision {input.precision:q} \
            --out {params.stem:q} \
            2>&1 | tee {log:q}
        """
