# Paper: the study as a LaTeX document, from its tables and figures.
#   in:  RUNS_CSV, EPOCHS_CSV, NETWORK_CSV where the study has a collective benchmark; all tables and figures
#   out: RESULTS/paper/: main.tex (written once; then its author edits it), the parts that it reads (regenerated),
#        paper.pdf; supplement.tex and .pdf

from report.checkout import checkout_state

PAPER = f"{RESULTS}/paper"
PAPER_PARTS = [
    "options",
    "preamble",
    "abstract",
    "methods",
    "results",
    "tables",
    "discussion",
    "threats",
    "conclusion",
    "reproducibility",
    "supplement",
]
DOCUMENTS = {"paper": "main", "supplement": "supplement"}  # PDF -> its source
ALL_FIGURES = list(PRODUCTS.figures)  # of the paper and of its supplement


localrules:
    paper_main,
    paper_parts,
    paper_pdf,


rule paper:
    """Make the paper of the study and its supplement: LaTeX sources, and PDFs where TeX is installed."""
    input:
        REQUIRED_INPUTS,
        pdf=expand(f"{PAPER}/{{document}}.pdf", document=DOCUMENTS),


rule paper_main:
    """Write main.tex, the author's text, once; it is never overwritten."""
    output:
        main=update(f"{PAPER}/main.tex"),
    params:
        skeleton=f"{SCRIPTS}/report/main-{CAMPAIGN.study.paper.class_name}.tex",
    shell:
        """
        [ -e {output.main:q} ] || cp {params.skeleton:q} {output.main:q}
        """


rule paper_parts:
    """Write the generated parts of the paper, and copy its figures and tables."""
    input:
        runs=RUNS_CSV,
        epochs=EPOCHS_CSV,
        network=PRODUCTS.record_files("network"),
        study=f"config/studies/{STUDY}.yaml",
        figures=expand(f"{RESULTS}/figures/{{figure}}.pdf", figure=ALL_FIGURES),
        captions=expand(f"{RESULTS}/figures/{{figure}}.caption.md", figure=ALL_FIGURES),
        tables=expand(f"{RESULTS}/tables/{{table}}.tex", table=PRODUCTS.printed_tables),
        table_texts=expand(
            f"{RESULTS}/tables/{{table}}.{{suffix}}", table=PRODUCTS.printed_tables, suffix=["csv", "md"]
        ),
        changed=changed("paper_parts", program_sources("report.paper")),
    output:
        parts=expand(f"{PAPER}/{{part}}.tex", part=PAPER_PARTS),
        references=f"{PAPER}/references.bib",
        figures=expand(f"{PAPER}/figures/{{figure}}.{{suffix}}", figure=ALL_FIGURES, suffix=["pdf", "tex"]),
        tables=expand(f"{PAPER}/tables/{{table}}.tex", table=PRODUCTS.printed_tables),
    log:
        f"{RESULTS}/logs/paper/parts.log",
    params:
        study=STUDY,
        site=SITE,
        figures=[spec.to_json() for spec in PRODUCTS.figures.values()],
        figure_folder=f"{RESULTS}/figures",
        tables=[f"{RESULTS}/tables/{table}" for table in PRODUCTS.printed_tables],
        checkout=lambda wildcards: checkout_state().to_json(),
        out=lambda wildcards, output: str(Path(output.references).parent),
    shell:
        """
        {PREFORKED} report.paper \
            --study {params.study:q} \
            --site {params.site:q} \
            --runs {input.runs:q} \
            --epochs {input.epochs:q} \
            --network {input.network:q} \
            --figures {params.figures:q} \
            --figure-folder {params.figure_folder:q} \
            --tables {params.tables:q} \
            --checkout {params.checkout:q} \
            --out {params.out:q} \
            2>&1 | tee -p {log:q}
        """


rule paper_pdf:
    """Compile the paper, or its supplement; without TeX, say what to install."""
    input:
        main=lambda wildcards: f"{PAPER}/{DOCUMENTS[wildcards.document]}.tex",
        parts=rules.paper_parts.output.parts,
        references=rules.paper_parts.output.references,
        figures=rules.paper_parts.output.figures,
        tables=rules.paper_parts.output.tables,
        changed=changed("paper_pdf", program_sources("report.pdf")),
    output:
        pdf=f"{PAPER}/{{document}}.pdf",
    log:
        f"{RESULTS}/logs/paper/{{document}}.log",
    wildcard_constraints:
        document="|".join(DOCUMENTS),
    shell:
        """
        {PREFORKED} report.pdf \
            --main {input.main:q} \
            --out {output.pdf:q} \
            --log {log:q}
        """
