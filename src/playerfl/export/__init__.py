"""A trained model as a folder that stands alone, and predictions from it."""
