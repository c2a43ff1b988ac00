"""Import of a device registry of Eclipse Hono into the registry of a hub."""
