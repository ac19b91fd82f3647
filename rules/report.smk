# Report: one self-contained HTML page, made of figures, tables and records; nothing is downloaded.
#   in:  RUNS_CSV, EPOCHS_CSV, phases.csv and network.csv if they exist, all figures with their captions, all tables;
#        records and logs where they are on this machine
#   out: RESULTS/report.html

from report.checkout import checkout_state

REPORTED_FIGURES = [f"{RESULTS}/figures/{name}" for name in PRODUCTS.figures]
REPORTED_TABLES = [f"{RESULTS}/tables/{name}" for name in PRODUCTS.printed_tables]


localrules:
    report,


rule report:
    """Make report.html: one page with everything, to open in a browser."""
    input:
        REQUIRED_INPUTS,
        runs=RUNS_CSV,
        epochs=EPOCHS_CSV,
        phases=PRODUCTS.record_files("phases"),
        network=PRODUCTS.record_files("network"),
        study=f"config/studies/{STUDY}.yaml",
        site=f"config/sites/{SITE}.yaml",
        figures=expand("{stem}.{suffix}", stem=REPORTED_FIGURES, suffix=["svg", "png", "pdf", "caption.md"]),
        tables=expand("{stem}.{suffix}", stem=REPORTED_TABLES, suffix=["csv", "md"]),
        changed=changed("report", program_sources("report.make")),
    output:
        page=f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    params:
        study=STUDY,
        site=SITE,
        source=str(CAMPAIGN.published_folder or CAMPAIGN.mode),
        figures=[spec.to_json() for spec in PRODUCTS.figures.values()],
        figure_folder=f"{RESULTS}/figures",
        tables=REPORTED_TABLES,
        checkout=lambda wildcards: checkout_state().to_json(),
    shell:
        """
        {PREFORKED} report.make \
            --study {params.study:q} \
            --site {params.site:q} \
            --source {params.source:q} \
            --runs {input.runs:q} \
            --epochs {input.epochs:q} \
            --figures {params.figures:q} \
            --figure-folder {params.figure_folder:q} \
            --tables {params.tables:q} \
            --phases {input.phases:q} \
            --network {input.network:q} \
            --checkout {params.checkout:q} \
            --out {output.page:q} \
            2>&1 | tee -p {log:q}
        """
