"""Settings of a gateway on its card: one file on the first partition, next to the image."""
