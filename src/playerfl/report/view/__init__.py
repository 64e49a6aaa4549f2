"""What a report shows, said once: facts with their columns, sections of text and tables. All formats use it."""
