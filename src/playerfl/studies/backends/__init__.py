"""Backends, which run the groups of a study: this process, worker processes, or a Ray cluster."""
