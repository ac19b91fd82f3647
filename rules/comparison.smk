# Comparison: two campaigns, of another date, site or version: which cells changed, and by how much.
#   in:  the runs.csv of both: --config base=FOLDER other=FOLDER
#   out: results/comparison/<base>--<other>/comparison.csv, .md, .tex, .pdf, .svg, .png and .caption.md

from comparison import matched

ASKED_TO_COMPARE = exit_on_input_error(lambda: matched.folders_from_config(config))


if ASKED_TO_COMPARE:

    if workflow.is_main_process:
        exit_on_input_error(lambda: matched.read(*ASKED_TO_COMPARE))

    COMPARISON = str(matched.stem(*ASKED_TO_COMPARE))

    localrules:
        comparison,

    rule compare:
        """Compare two campaigns: --config base=FOLDER other=FOLDER."""
        input:
            expand(
                "{stem}.{suffix}",
                stem=COMPARISON,
                suffix=["csv", "md", "tex", "pdf", "svg", "png", "caption.md"],
            ),

    rule comparison:
        """Make the table and the figure of what changed."""
        input:
            runs=[f"{folder}/runs.csv" for folder in ASKED_TO_COMPARE],
            changed=changed("comparison", code("comparison.compare")),
        output:
            expand(
                "{stem}.{suffix}",
                stem=COMPARISON,
                suffix=["csv", "md", "tex", "pdf", "svg", "png", "caption.md"],
            ),
        log:
            f"{COMPARISON}.log",
        params:
            base=ASKED_TO_COMPARE[0],
            other=ASKED_TO_COMPARE[1],
            stem=COMPARISON,
        shell:
            """
            {PREFORKED} comparison.compare \
                --base {params.base:q} \
                --contender {params.other:q} \
                --out {params.stem:q} \
                2>&1 | tee -p {log:q}
            """

else:

    rule compare:
        """Compare two campaigns: --config base=FOLDER other=FOLDER."""
        input:
            lambda wildcards: exit_on_input_error(matched.refuse),
