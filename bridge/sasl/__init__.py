"""The SASL layer of an AMQP 1.0 connection (part 5, section 5.3), both roles, without I/O.

It stands before the engine: it takes the bytes of a connection until the outcome, gives its own bytes to send, and
hands on what belongs to the AMQP layer. `layer` is what both roles share; `scram` and `bearer` are mechanisms.
"""

from bridge.sasl.client import SaslClient
from bridge.sasl.server import ANONYMOUS, PLAIN, CredentialAnswer, CredentialChecker, SaslServer

__all__ = ["ANONYMOUS", "PLAIN", "CredentialAnswer", "CredentialChecker", "SaslClient", "SaslServer"]
