"""A report as files: page, Markdown, LaTeX, CSV."""
