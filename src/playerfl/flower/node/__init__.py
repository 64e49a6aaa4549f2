"""What runs beside Flower's node: the postman and its connection to the agent. Nothing here imports torch."""
