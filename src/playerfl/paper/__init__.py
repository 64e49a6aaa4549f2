"""Everything about the PLayer-FL paper alone: what it prints, its arithmetic, its thresholds."""
