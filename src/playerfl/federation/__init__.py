"""The nouns of federation: messages, a site's workbench, the coordinator's workbench."""
