"""The checks of a contract, by what they look at. Each raises BrokenError, or returns a warning, or nothing."""
