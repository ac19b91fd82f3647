"""What people write, read and checked: configuration, study, site, frameworks, environments, data sets, figures. Nothing is done."""
