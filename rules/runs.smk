# Runs: one record for each row of the design, even if the training fails.
#   A lost or stopped attempt leaves none, so the next Snakemake that is asked for the run executes it.
#   in:  an environment, a prepared data set (both ancient: their digests are part of the key, so dates are ignored)
#   out: results/<study>/runs/<run_id>/<key>/record.json (config/schemas/record.schema.yaml), next to the attempts
# Largest batches: a search for each cell with `batch_size: largest`; the next plan reads the result.
#   out: RESULTS/largest/<search>/<key>/batch_search.json (config/schemas/batch_search.schema.yaml), next to the
#        attempts
#        config/batch_sizes/<study>.<site>.json (config/schemas/batch_sizes.schema.yaml), a copy in RESULTS/largest
# Node check: if the study has the key, all nodes are tested before other jobs use them; these avoid the slow ones.
#   out: RESULTS/nodes.csv (config/schemas/nodes.schema.yaml)

from common.files import display_path
from plan.batch_sizes import batch_size_file
from plan.largest import BatchSearches
from plan.scheduling import concurrent_share, deferred_resources, node_check_resources
from plan.plan_files import plan_file

BLOCK = config.get("block")
GEOMETRIES = {run_id: run.geometry for run_id, run in CAMPAIGN.by_id.items()}

SEARCHES = exit_on_input_error(lambda: BatchSearches(CAMPAIGN))
REQUIRED_SEARCHES = list(SEARCHES.record_paths.values())
BATCH_SIZES_JSON = display_path(batch_size_file(STUDY, SITE))


rule runs:
    """Train every run of the design that has no record yet (with --config block=N, those of that block)."""
    input:
        REQUIRED_RECORDS if BLOCK is None else exit_on_input_error(lambda: record_paths_of_block(BLOCK)),


if NODE_CHECK:
    if CAMPAIGN.site.launcher == "slurm":

        localrules:
            node_check,

    rule node_check:
        """Test the nodes against each other; later jobs avoid the slow ones."""
        input:
            [ancient(stamp) for name, stamp in CAMPAIGN.environments.items() if name == "pytorch"],  # the check of accelerators needs PyTorch
        output:
            nodes=NODE_CHECK,
        log:
            f"{RESULTS}/logs/node_check.log",
        priority: 2 * 10**9
        resources:
            **node_check_resources(CAMPAIGN.site),
            machine=100,
        params:
            site=SITE,
        shell:
            """
            {PREFORKED} runs.node_check --site {params.site:q} --out {output.nodes:q} 2>&1 | tee -p {log:q}
            """


rule run:
    """Train one run, alone on the machine, and write its record."""
    input:
        ancient(NODE_CHECK),
        environment=lambda wildcards: ancient(CAMPAIGN.environment_of(wildcards.run_id)),
        dataset=lambda wildcards: [ancient(file) for file in CAMPAIGN.dataset_of(wildcards.run_id)],
    output:
        record=f"{RESULTS}/runs/{{run_id}}/{{key}}/record.json",
    priority: lambda wildcards: CAMPAIGN.priorities[wildcards.run_id]
    resources:
        **deferred_resources(CAMPAIGN.site, CAMPAIGN.results, GEOMETRIES, "run_id"),
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


rule largest:
    """Search the largest batch that fits, for every cell with batch_size: largest."""
    input:
        lambda wildcards: exit_on_input_error(
            lambda: SEARCHES.check_available([f"{RESULTS}/largest/batch_sizes.json"])
        ),


if REQUIRED_SEARCHES:

    localrules:
        largest_batches,

    rule batch_search:
        """Search the largest batch of cells that share a search, by trial runs, alone on the machine."""
        input:
            ancient(NODE_CHECK),
            environment=lambda wildcards: ancient(SEARCHES.environment(wildcards.search)),
            dataset=lambda wildcards: ancient(SEARCHES.dataset(wildcards.search)),
        output:
            search=f"{RESULTS}/largest/{{search}}/{{key}}/batch_search.json",
        wildcard_constraints:
            search="|".join(SEARCHES.by_name),
        priority: 5 * 10**8
        resources:
            **SEARCHES.resources(),
            machine=concurrent_share(CAMPAIGN.site),
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} runs.largest \
                --study {params.study:q} \
                --site {params.site:q} \
                --search {wildcards.search:q} \
                --key {wildcards.key:q} \
                --out {output.search:q}
            """

    rule largest_batches:
        """Write the batch sizes that the searches found, for the plan."""
        input:
            searches=REQUIRED_SEARCHES,
            changed=changed("largest_batches", program_sources("runs.largest_batches")),
        output:
            found=f"{RESULTS}/largest/batch_sizes.json",
            batch_sizes=[] if Path(BATCH_SIZES_JSON).exists() else BATCH_SIZES_JSON,  # as an output, a job that failed would delete it
        log:
            f"{RESULTS}/logs/largest_batches.log",
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} runs.largest_batches \
                --study {params.study:q} \
                --site {params.site:q} \
                --out {output.found:q} \
                2>&1 | tee -p {log:q}
            """
