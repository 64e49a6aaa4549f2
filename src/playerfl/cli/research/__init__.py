"""Commands for research: layer analysis, the multiverse, the paper's thresholds."""
