"""HTTP endpoints as peers: each batch is a signed POST with an id that detects repeats."""
