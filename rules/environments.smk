# Environments: locks and descriptions in containers/ -> tested interpreters in the site's cache.
#   in:  containers/<environment>/: environment.yaml, requirements.*.txt, selftest.py (all in the digest, and so in
#        the path)
#   out: <cache>/environments/<environment>/<digest>/environment.json, which lists the packages; its folder has venv/, or
#        image.sif
#        and recipe.def; and build.log

from declared.environments import command_environments, names
from environments.identity import parent_stamps

if BUILD_LOCALLY:

    localrules:
        environment,


rule environments:
    """Build and test all environments that the study needs."""
    input:
        list(CAMPAIGN.environments.values()),


rule images:
    """Build and test all images that the study needs."""
    input:
        lambda wildcards: exit_on_input_error(CAMPAIGN.image_stamps),


rule environment:
    """Build one environment (locked packages, wheels of our own), as a virtual environment or an image, and test it."""
    input:
        parent=lambda wildcards: [
            ancient(stamp)
            for stamp in parent_stamps(
                CACHE, wildcards.environment, CAMPAIGN.site.variant, CAMPAIGN.site.realization
            )
        ],
    output:
        stamp=f"{CACHE}/environments/{{environment}}/{{digest}}/environment.json",
    log:
        f"{RESULTS}/logs/environments/{{environment}}.{{digest}}.log",
    wildcard_constraints:
        environment="|".join([*names(), *command_environments()]),
        digest=CALL.missing_digests(CAMPAIGN.environments.values()),
    priority: 2 * 10**9
    resources:
        **BUILD_RESOURCES,
    params:
        site=SITE,
    shell:
        """
        {PREFORKED} environments.build \
            --environment {wildcards.environment:q} \
            --site {params.site:q} \
            --out {output.stamp:q} \
            2>&1 | tee -p {log:q}
        """
