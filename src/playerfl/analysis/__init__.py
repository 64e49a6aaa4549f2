"""How layers generalise: gradient variance, curvature, similarity between sites, sensitivity; and tests of the cut."""
