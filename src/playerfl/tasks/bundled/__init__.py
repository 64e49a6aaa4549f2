"""The tasks that come with the package, one file per dataset."""
