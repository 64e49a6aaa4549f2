"""One run from its experiment file to its result."""
