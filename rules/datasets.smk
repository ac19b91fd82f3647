# Datasets: the table's entry -> the one prepared format, in the site's cache.
#   in:  workflow/scripts/datasets/table.yaml
#   out: <cache>/datasets/<name>/<digest>/manifest.json, beside it train/ and validation/


rule datasets:
    """Prepare all data sets that the study needs."""
    input:
        list(CAMPAIGN.datasets.values()),


rule dataset:
    """Prepare one data set: uint8 images, labels, manifest."""
    output:
        manifest=f"{CACHE}/datasets/{{dataset}}/{{digest}}/manifest.json",
    log:
        f"{RESULTS}/logs/datasets/{{dataset}}.{{digest}}.log",
    wildcard_constraints:
        digest=r"[0-9a-f]{12}",
    priority: 10**9
    resources:
        **BUILD_RESOURCES,
        machine=1,
    shell:
        """
        python -m datasets.prepare \
            --dataset {wildcards.dataset:q} \
            --out {output.manifest:q} \
            2>&1 | tee {log:q}
        """
