# Prediction: the environment of Extra-P, which only makes predictions, if the study asks for it. rules/analysis.smk
# makes the tables.

EXTRA_P = exit_on_input_error(
    lambda: [stamp for program in PRODUCTS.programs for stamp in PRODUCTS.environments(program)]
)


if EXTRA_P and not CALL.is_made(EXTRA_P[0]):

    localrules:
        extra_p,

    rule extra_p:
        """Build and test the environment of Extra-P, which only makes predictions."""
        output:
            stamp=EXTRA_P,
        log:
            f"{RESULTS}/logs/environments/extrap.log",
        priority: 2 * 10**9
        params:
            site=SITE,
        shell:
            """
            {PREFORKED} environments.build \
                --environment extrap \
                --site {params.site:q} \
                --out {output.stamp:q} \
                2>&1 | tee -p {log:q}
            """
