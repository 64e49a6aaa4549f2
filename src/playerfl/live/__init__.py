"""A page on this computer that shows runs, studies and jobs while they go on. It reads their files and writes none."""
