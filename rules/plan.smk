# Plan: study + site -> the design, and what it will cost.
#   in:  config/studies/<study>.yaml, config/sites/<site>.yaml
#   out: results/<study>/design.csv, one row per run (config/schemas/design.schema.yaml)


rule plan:
    """Write the design, and say what it will cost: runs, hours, disk. Nothing else runs."""
    input:
        design=f"{RESULTS}/design.csv",
    resources:
        machine=1,
    params:
        study=STUDY,
        site=SITE,
    shell:
        """
        python -m plan.cost \
            --study {params.study:q} \
            --site {params.site:q}
        """


rule design:
    """Write the design: every run of the study, in randomized order, before anything runs."""
    input:
        study=f"config/studies/{STUDY}.yaml",
        site=f"config/sites/{SITE}.yaml",
    output:
        design=f"{RESULTS}/design.csv",
    log:
        f"{RESULTS}/logs/design.log",
    priority: 3 * 10**9
    resources:
        machine=1,
    params:
        study=STUDY,
        site=SITE,
    shell:
        """
        python -m plan.design \
            --study {params.study:q} \
            --site {params.site:q} \
            --out {output.design:q} \
            2>&1 | tee {log:q}
        """
