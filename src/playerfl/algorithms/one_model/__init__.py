"""Methods that train one common model."""
