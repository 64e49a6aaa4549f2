"""The agent as a process: the socket where it listens, and the memory it keeps."""
