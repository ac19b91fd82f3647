# Figures: those that the study declares (its key `figures`), or else the defaults;
# workflow/scripts/declared/products/figures.yaml has the kinds.
#   in:  RUNS_CSV, EPOCHS_CSV, plus whichever exist of the inputs of its kind and the table `replication`
#   out: RESULTS/figures/<figure>.pdf, .svg, .png and .caption.md

# If no figure exists yet, the first block is drawn when it is complete, before the second one begins.
PREVIEW = (
    [f"{RESULTS}/preview/block-{CAMPAIGN.blocks[0]}"]
    if CAMPAIGN.is_measuring
    and len(CAMPAIGN.blocks) > 1
    and not any(map(os.path.exists, PRODUCTS.all_figure_files))
    else []
)

# Preload the figures' imports while Snakemake builds the DAG.
CALL.start_server_early(PRODUCTS.all_figure_files)


localrules:
    figure,


rule figures:
    """Make all figures and tables of the study, and their manifest."""
    input:
        REQUIRED_INPUTS,
        PREVIEW,
        RUNS_CSV,
        EPOCHS_CSV,
        figures=PRODUCTS.all_figure_files,
        tables=[*NETWORK_RECORDS, *PRODUCTS.table_files],
        manifest=f"{RESULTS}/manifest.json",


if PREVIEW:

    localrules:
        preview,

    rule preview:
        """Draw the figures of the first block, as `ringside preview` does. If that fails, the campaign goes on."""
        input:
            CAMPAIGN.record_paths_of_block(CAMPAIGN.blocks[0]),
        output:
            done=touch(PREVIEW[0]),
        log:
            f"{RESULTS}/logs/preview.log",
        priority: 10**9
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            if {PREFORKED} report.preview --study {params.study:q} --site {params.site:q} >{log:q} 2>&1; then
                echo "first figures, of the first block: $(dirname {output.done:q})/figures"
            else
                echo "no figures of the first block yet: see {log}"
            fi
            """


rule figure:
    """Draw one figure with its caption."""
    input:
        lambda wildcards: list(PRODUCTS.figure_inputs(wildcards.figure).values()),
        changed=changed(
            "figure",
            lambda wildcards: program_sources("figures.draw", PRODUCTS.figure_module(wildcards.figure)),
        ),
    output:
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        svg=report(
            f"{RESULTS}/figures/{{figure}}.svg",
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        png=f"{RESULTS}/figures/{{figure}}.png",
        caption=f"{RESULTS}/figures/{{figure}}.caption.md",
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    wildcard_constraints:
        figure="|".join(PRODUCTS.figures),
    params:
        figure=lambda wildcards: PRODUCTS.figures[wildcards.figure].to_json(),
        inputs=lambda wildcards: [
            f"{name}={file}" for name, file in PRODUCTS.figure_inputs(wildcards.figure).items()
        ],
        stem=lambda wildcards, output: output.pdf.removesuffix(".pdf"),
    shell:
        """
        {PREFORKED} figures.draw \
            --figure {params.figure:q} \
            --inputs {params.inputs:q} \
            --out {params.stem:q} \
            2>&1 | tee -p {log:q}
        """
