"""Update bundles of gateways, in a folder of the hub, which serves them to gateways by their certificates."""
