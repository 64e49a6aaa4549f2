"""What travels between server and sites, and how it is encoded."""
