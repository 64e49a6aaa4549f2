"""Studies: tasks x algorithms x learning rates x seeds, on every core, nothing run twice."""
