"""What travels between the server and its sites, and how it is encoded."""
