"""SASL layer of an AMQP 1.0 connection (part 5, section 5.3), both roles, without I/O.

It precedes the engine: it takes the bytes of a connection until the outcome, returns its own bytes to send, and passes
on the bytes of the AMQP layer. `layer` is shared by both roles; `scram` and `bearer` are mechanisms.
"""

from bridge.sasl.client import SaslClient
from bridge.sasl.server import ANONYMOUS, PLAIN, CredentialAnswer, CredentialChecker, SaslServer

__all__ = ["ANONYMOUS", "PLAIN", "CredentialAnswer", "CredentialChecker", "SaslClient", "SaslServer"]
