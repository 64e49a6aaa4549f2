"""Sites' data: containers, partitions, splits. Nothing here knows of federation."""
