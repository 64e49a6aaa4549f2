"""What runs alongside Flower's node: the relay and its connection to the agent. Nothing here imports torch."""
