"""The same engine across institutions, over Flower: the wire, the site, the server, and commands to operate them."""
