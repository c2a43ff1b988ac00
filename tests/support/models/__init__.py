"""Models in Python of what the product does in C. Property tests compare both."""
