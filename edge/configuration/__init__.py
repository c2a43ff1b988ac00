"""What a gateway can be told: its kinds of resources, and what must hold between them.

The gateway reads its own resources with it, and the hub checks with it what it is to send to gateways.
"""
