"""A site: its data, its private state and what it sends."""
