"""The bundled networks, each declaring its layers."""
