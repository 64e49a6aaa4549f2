"""The multiverse: one ranking for every reasonable protocol, and which choice decides it."""
