"""How long a round will take before there is a federation: a simulation of its messages, driven by measured costs."""
