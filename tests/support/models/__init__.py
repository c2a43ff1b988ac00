"""Models in Python of code in C. Property tests compare both."""
