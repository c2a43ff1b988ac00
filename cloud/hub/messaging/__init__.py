"""Message brokers of others (RabbitMQ, ActiveMQ Artemis) for applications: commands, their outcomes, and live copies.

Several hubs use the same queues, so an application does not have to know which hub has its gateway.
"""
