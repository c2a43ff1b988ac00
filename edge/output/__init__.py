"""What leaves the program for people: texts of peers, and log lines. It knows nothing else of the project."""
