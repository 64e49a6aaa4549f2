"""What runs alongside Flower's node: the postman and its connection to the agent. Nothing here imports torch."""
