"""What a person should know about the sites' data before anything trains on them."""
