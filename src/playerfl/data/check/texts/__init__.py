"""Labels, categories and words: how sites write and code what means the same."""
