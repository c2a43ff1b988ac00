"""HTTP endpoints as peers: batches, each a signed POST that can be recognised when it is repeated."""
