"""Keys, certificates, configuration files and processes: what an operator needs."""
