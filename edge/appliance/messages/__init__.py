"""Messages of a running gateway, for people: dead letters, the content of queues and logs, publishing by hand."""
