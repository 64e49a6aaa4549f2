"""A trained model as a self-contained folder, and predictions from it."""
