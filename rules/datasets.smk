# Datasets: the table's entry -> its archives, verified -> one prepared format for all, in the site's cache.
#   in:  workflow/scripts/datasets/table.yaml, config/datasets.yaml (a user's own, if it exists)
#   out: <cache>/datasets/<name>/<digest>/prepared; the same folder has manifest.json, train/ and validation/;
#        <cache>/downloads/<name>/


if BUILD_LOCALLY:

    localrules:
        dataset,


rule datasets:
    """Download and prepare all data sets that the study needs."""
    input:
        list(CAMPAIGN.datasets.values()),


rule dataset:
    """Download one data set unless it is there, and prepare it: uint8 images, labels, manifest."""
    output:
        prepared=f"{CACHE}/datasets/{{dataset}}/{{digest}}/prepared",
    log:
        f"{RESULTS}/logs/datasets/{{dataset}}.{{digest}}.log",
    wildcard_constraints:
        digest=CALL.missing_digests(CAMPAIGN.datasets.values()),
    priority: 10**9
    resources:
        **BUILD_RESOURCES,
    params:
        site=SITE,
    shell:
        """
        {PREFORKED} datasets.prepare \
            --dataset {wildcards.dataset:q} \
            --site {params.site:q} \
            --out {output.prepared:q} \
            2>&1 | tee -p {log:q}
        """
