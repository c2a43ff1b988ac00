"""Configuration of gateways by the hub: making, signing, sending, reports and roll-outs."""
