"""From results to tables and figures. Knows results only."""
