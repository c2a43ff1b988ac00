"""Update bundles that a hub serves."""
