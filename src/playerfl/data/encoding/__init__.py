"""From the cells of a table or the pixels of an image to a model's inputs, and from its outputs back to the target."""
