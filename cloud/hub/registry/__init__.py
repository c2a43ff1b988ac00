"""Registry of the hub in one database: commits, marks, gateways, certificates, commands, configurations."""
