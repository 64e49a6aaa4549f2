"""What travels between coordinator and sites, and how it is encoded."""
