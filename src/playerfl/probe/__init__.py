"""The probe: one measured epoch at every site, and what is kept of it."""
