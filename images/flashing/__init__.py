"""Write an image onto cards: choose disks safely, write sparsely, read back, print labels."""
