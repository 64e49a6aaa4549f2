"""The commands of `playerfl flower` for the server's operator: the server, its sites' keys, its certificates."""
