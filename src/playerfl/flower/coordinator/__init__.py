"""The coordinator's side of a job."""
