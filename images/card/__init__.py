"""What is written on a card beside the image: its gateway's settings, one file on the first partition."""
