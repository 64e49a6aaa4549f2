"""The messages between the server and its sites, and how they are encoded."""
