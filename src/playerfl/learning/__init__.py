"""A site's training and evaluation: one model, no federation."""
