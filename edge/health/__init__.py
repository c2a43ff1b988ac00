"""What is wrong with a running process, gateway or hub: one noun, the problem, for whoever asks how it is."""
