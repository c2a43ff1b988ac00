"""Problems of a running process, gateway or hub."""
