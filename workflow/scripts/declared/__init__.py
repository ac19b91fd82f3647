"""Read and check what people write: configuration, study, site, frameworks, data sets and figures."""
