"""From results to numbers: grids, tables, ranks, tests, costs."""
