"""From the cells of a table or the pixels of a picture to a model's inputs, and from its outputs back to the target."""
