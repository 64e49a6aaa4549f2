"""The stacked trainer: many models of one kind in each tensor operation, with the arithmetic of the plain loop.

`torch.func.vmap` runs the model's own forward pass over a stack of weights; `linear_stack` does so for models that have
only linear layers and activations. A model's result has the same bits whatever else is in the stack: batches have a
fixed width, rows a fixed alignment (see Layout), and no operation mixes models. Models need not share their examples:
the examples of all models are gathered in one table, from which a batch for all of them is taken at once. The bits
differ from those of the plain loop, because its matrix products have other shapes.
"""
