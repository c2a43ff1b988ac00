"""Devices of tenants with their credentials, and the management API of Eclipse Hono's device registry for them."""
