# Plan: study + site -> what the campaign will cost, and the design.
#   in:  config/studies/<study>.yaml, config/sites/<site>.yaml
#   out: results/<study>/design.csv, one row per run (config/schemas/design.schema.yaml)
# PRODUCTS: the figures and tables of the campaign, as declared in workflow/scripts/declared/products/.

from plan.products import Products
from plan.collective_benchmarks import CollectiveBenchmarks
from plan.timings import Timings

BENCHMARKS = exit_on_input_error(lambda: CollectiveBenchmarks(CAMPAIGN))
TIMINGS = exit_on_input_error(lambda: Timings(CAMPAIGN))
NODE_CHECK = [str(CAMPAIGN.node_check)] if CAMPAIGN.node_check else []
PRODUCTS = exit_on_input_error(lambda: Products(CAMPAIGN, BENCHMARKS, TIMINGS))


localrules:
    plan,
    design,


rule plan:
    """Show what the campaign will cost: runs, hours, disk. Nothing runs, and nothing is written."""
    params:
        study=STUDY,
        site=SITE,
    shell:
        """
        {PREFORKED} plan.cost --study {params.study:q} --site {params.site:q}
        """


rule design:
    """Write design.csv: every run of the study, in randomized order, before anything runs. Made again if it would change."""
    input:
        changed=lambda wildcards: [] if CAMPAIGN.is_design_current else CALL.content.mark(),
    output:
        design=f"{RESULTS}/design.csv",
    log:
        f"{RESULTS}/logs/design.log",
    priority: 3 * 10**9
    params:
        study=STUDY,
        site=SITE,
    shell:
        """
        {PREFORKED} plan.design \
            --study {params.study:q} \
            --site {params.site:q} \
            --out {output.design:q} \
            2>&1 | tee -p {log:q}
        """
