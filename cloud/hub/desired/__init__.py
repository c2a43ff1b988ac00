"""What gateways are to be configured with: made and signed, sent down, reported back, rolled out."""
