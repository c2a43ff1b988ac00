"""What a message says of itself, in either protocol's encoding: properties, annotations, time to live, readings."""
