"""Methods that share some layers and keep the others private."""
