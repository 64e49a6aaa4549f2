"""The tasks that come with the package, one file a dataset."""
