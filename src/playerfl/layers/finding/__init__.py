"""How a model's blocks are found: from a recorded forward pass, or from its definition if it cannot be run."""
