"""Settings for a gateway's first start: a file on its card, written by a technician on a laptop."""
