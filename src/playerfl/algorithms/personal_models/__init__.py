"""Methods in which every site has its own whole model."""
