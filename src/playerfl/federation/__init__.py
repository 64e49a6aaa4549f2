"""The nouns of federation: messages, client, server."""
