"""The probe: one measured epoch at every site, and the files it is stored in."""
