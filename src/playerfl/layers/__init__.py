"""What a layer is, how sensitive it is to federation, and where to cut. Usable without any federation."""
