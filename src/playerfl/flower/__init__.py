"""The same engine across institutions, over Flower: codec, site, coordinator, and what starts them."""
