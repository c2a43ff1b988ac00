"""Inspection, verification and repair of a store from outside. The engine itself is `edge.broker.store`."""
