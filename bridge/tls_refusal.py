"""Why there is no TLS with a peer, and what to do: its alert (RFC 8446 section 6.2), or what is wrong with its
certificate, in words for a person.

In TLS 1.3 the client's handshake is over before the peer has looked at its certificate: the alert comes on the
connection that seemed to stand.
"""

from __future__ import annotations

import ssl
from typing import Final

_ENROL: Final = "enrol anew (waypost edge enrol), or put a certificate there that the peer takes"
_WORDS: Final = {
    "CERTIFICATE_REVOKED": f"our certificate was revoked; {_ENROL}",
    "CERTIFICATE_EXPIRED": f"our certificate has expired by the peer's clock; compare the clocks, or {_ENROL}",
    "UNKNOWN_CA": f"it does not know the authority of our certificate; is it the right peer? If so {_ENROL}",
    "CERTIFICATE_REQUIRED": "it wants a certificate and we have shown none; enrol (waypost edge enrol), or name one in "
    "`tls: {clientCert, clientKey}`",
    "BAD_CERTIFICATE": f"our certificate is damaged, or says nothing the peer can use; {_ENROL}",
    "CERTIFICATE_UNKNOWN": f"it does not accept our certificate; see its log, or {_ENROL}",
    "UNSUPPORTED_CERTIFICATE": f"our certificate is of a kind it does not take; {_ENROL}",
    "ACCESS_DENIED": "our certificate is good, and it does not let us in; see its rights",
    "DECRYPT_ERROR": "our key and certificate do not belong together, as the peer sees it; see `tls`",
    "HANDSHAKE_FAILURE": "we have no version, cipher or certificate it takes; it may want a certificate "
    "(`tls: {clientCert, clientKey}`), or see the peer's settings of TLS",
    "PROTOCOL_VERSION": "it speaks no version of TLS that we do (1.2 or newer); see the peer's settings",
    "UNRECOGNIZED_NAME": "it has no certificate for this host name; see the endpoint's name",
    "NO_APPLICATION_PROTOCOL": "it does not offer this protocol on this port; see the endpoint's port",
}
_VERIFIED: Final = {
    3: "fetch the list of what its authority has revoked, or leave `tls: {crl}` out",
    10: "if this machine's clock is right, whoever runs the peer has to renew it",
    12: "the list of revoked certificates is too old: is this machine's clock right? A gateway that has enrolled "
    "fetches the next one as soon as its hub answers, else put a new one there (`tls: {crl}`)",
    23: "nothing is sent to whoever that is; ask who runs the peer why it shows a certificate that counts no more",
    62: "see the endpoint's name, and the names the peer was given (hub run --name)",
}
"""What to do, by OpenSSL's code of what is wrong with the peer's certificate."""
_ALERT: Final = "_ALERT_"
"""OpenSSL's reasons for these errors: a version, this, and the alert's name."""


def refusal(error: BaseException | None) -> str | None:
    """What the peer's alert says of us, or what is wrong with its certificate; None where the error is neither."""
    if isinstance(error, ssl.SSLCertVerificationError):
        step = _VERIFIED.get(error.verify_code, "is it the right peer, and is `tls: {caCert}` of its authority?")
        return f"certificate verify failed: {error.verify_message}; {step}"
    if not isinstance(error, ssl.SSLError):
        return None
    _, found, alert = reason_of(error).partition(_ALERT)
    if not found:
        return None
    said = alert.lower().replace("_", " ")
    return f"the peer refuses TLS with us ({said}): {_WORDS.get(alert, 'see its log')}"


def reason_of(error: ssl.SSLError) -> str:
    """OpenSSL's reason; empty where the error was not made by it, and then has no such attribute."""
    return getattr(error, "reason", None) or ""
