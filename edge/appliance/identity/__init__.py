"""Who a gateway is towards its hub: its key, its certificate, how it comes to them and renews them."""
