"""Methods that give every site a whole model of its own."""
