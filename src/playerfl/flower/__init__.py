"""The same engine across institutions, over Flower: codec, site, server, and what starts them."""
