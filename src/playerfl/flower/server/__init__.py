"""The server's side of a job: its state, its files, its messages to sites, and the function that runs it."""
