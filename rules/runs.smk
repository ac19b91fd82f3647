# Runs: the design's rows -> one record each, whatever becomes of the training.
#   in:  an environment, a prepared data set (both ancient: their digests are part of the key, so dates are ignored)
#   out: results/<study>/runs/<run_id>/<key>/record.json (config/schemas/record.schema.yaml); attempts lie beside it

from plan.scheduling import concurrent_share, deferred_resources
from plan.plan_files import plan_file

BLOCK = config.get("block")
GEOMETRIES = {run_id: run.geometry for run_id, run in CAMPAIGN.by_id.items()}


rule runs:
    """Train every run of the design that has no record yet (with --config block=N: of that block)."""
    input:
        REQUIRED_RECORDS if BLOCK is None else exit_on_input_error(lambda: records_of_block(BLOCK)),


rule run:
    """Train one run, alone on the machine, and write its record."""
    input:
        environment=lambda wildcards: ancient(CAMPAIGN.environment_of(wildcards.run_id)),
        dataset=lambda wildcards: ancient(CAMPAIGN.dataset_of(wildcards.run_id)),
    output:
        record=f"{RESULTS}/runs/{{run_id}}/{{key}}/record.json",
    priority: lambda wildcards: CAMPAIGN.priorities[wildcards.run_id]
    resources:
        **deferred_resources(CAMPAIGN.site, GEOMETRIES, "run_id"),
        machine=concurrent_share(CAMPAIGN.site),
    params:
        plan=lambda wildcards: str(plan_file(CAMPAIGN.results, wildcards.run_id)),
        site=SITE,
    shell:
        """
        {PREFORKED} runs.supervise \
            --site {params.site:q} \
            --plan {params.plan:q} \
            --key {wildcards.key:q}
        """
