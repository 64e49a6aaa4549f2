"""Where dataset files come from, and where they are stored."""
