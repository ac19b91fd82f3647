# Environments: locks and descriptions in containers/ -> tested interpreters in the site's cache.
#   in:  containers/<environment>/: environment.yaml, requirements.*.txt, selftest.py (all of it in the digest, so in the path)
#   out: <cache>/environments/<environment>/<digest>/environment.json, beside it venv/ and build.log; it lists the packages

from environments.description import names, parent_stamps
from plan.identity import variant


rule environments:
    """Build and test all environments that the study needs."""
    input:
        list(CAMPAIGN.environments.values()),


rule environment:
    """Build one environment (locked packages, wheels of our own) and test it."""
    input:
        parent=lambda wildcards: [
            ancient(stamp) for stamp in parent_stamps(CACHE, wildcards.environment, variant(CAMPAIGN.site))
        ],
    output:
        stamp=f"{CACHE}/environments/{{environment}}/{{digest}}/environment.json",
    log:
        f"{RESULTS}/logs/environments/{{environment}}.{{digest}}.log",
    wildcard_constraints:
        environment="|".join(names()),
        digest=r"[0-9a-f]{12}",
    priority: 2 * 10**9
    resources:
        **BUILD_RESOURCES,
        machine=1,
    params:
        cache=CACHE,
        variant=variant(CAMPAIGN.site),
        torch_index=CAMPAIGN.site.torch_index or "",
        site=SITE,
    shell:
        """
        python -m environments.build \
            --environment {wildcards.environment:q} \
            --variant {params.variant:q} \
            --cache {params.cache:q} \
            --torch-index {params.torch_index:q} \
            --site {params.site:q} \
            --out {output.stamp:q} \
            2>&1 | tee {log:q}
        """
