"""Sites' data: containers, partitions, splits, files. Nothing here knows about federation."""
