"""The commands that take a trained model out of a run, and use it."""
