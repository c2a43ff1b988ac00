"""A store seen from outside: inspected, verified, and made sound again. The engine itself is in `edge.broker.store`."""
