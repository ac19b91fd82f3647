"""Read and check what users write: configuration, study, site, frameworks, data sets and figures."""
