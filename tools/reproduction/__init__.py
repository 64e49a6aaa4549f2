"""What tools/reproduce_page.py writes: sections, tables and figures from the archives below results/."""
