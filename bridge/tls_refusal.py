"""Explain a TLS failure to an operator: the peer's alert (RFC 8446 section 6.2) or the fault of its certificate, with
the next step.

In TLS 1.3 the client's handshake ends before the peer has verified its certificate, so the alert arrives on a
connection that seemed to be up.
"""

from __future__ import annotations

import ssl
from typing import Final

_ENROL: Final = "enrol again (waypost enrol), or install a certificate that the peer accepts"
_WORDS: Final = {
    "CERTIFICATE_REVOKED": f"our certificate was revoked; {_ENROL}",
    "CERTIFICATE_EXPIRED": f"our certificate has expired by the peer's clock; compare the clocks, or {_ENROL}",
    "UNKNOWN_CA": f"it does not know the authority of our certificate; check that it is the right peer, then {_ENROL}",
    "CERTIFICATE_REQUIRED": "it requires a client certificate; enrol (waypost enrol), or set "
    "`tls: {clientCert, clientKey}`",
    "BAD_CERTIFICATE": f"our certificate is damaged, or has no name the peer can use; {_ENROL}",
    "CERTIFICATE_UNKNOWN": f"it does not accept our certificate; see its log, or {_ENROL}",
    "UNSUPPORTED_CERTIFICATE": f"it does not support the type of our certificate; {_ENROL}",
    "ACCESS_DENIED": "our certificate is valid but has no access; check the peer's access rules",
    "DECRYPT_ERROR": "our key and certificate do not match, according to the peer; check `tls`",
    "HANDSHAKE_FAILURE": "there is no common version or cipher, or it requires a client certificate "
    "(`tls: {clientCert, clientKey}`); check the peer's TLS settings",
    "PROTOCOL_VERSION": "it has no TLS version in common with us (1.2 or newer); check the peer's settings",
    "UNRECOGNIZED_NAME": "it has no certificate for this host name; check the host name of the endpoint",
    "NO_APPLICATION_PROTOCOL": "it does not offer this protocol on this port; check the port of the endpoint",
}
_VERIFIED: Final = {
    3: "fetch the revocation list of its authority, or remove `tls: {crl}`",
    10: "check this machine's clock; if it is right, the operator of the peer has to renew its certificate",
    12: "the revocation list is too old: check this machine's clock. An enrolled gateway fetches the next list as soon "
    "as its hub answers; otherwise install a new one (`tls: {crl}`)",
    23: "nothing is sent to this peer; ask its operator why it uses a revoked certificate",
    62: "check the host name of the endpoint, and the names of the peer (hub run --name)",
}
"""Next step, by OpenSSL's verification error of the peer's certificate."""
_ALERT: Final = "_ALERT_"
"""Separator in OpenSSL's reasons for alerts: version, this, name of the alert."""


def refusal(error: BaseException | None) -> str | None:
    """Return the meaning of the peer's alert or the fault of its certificate; None for other errors."""
    if isinstance(error, ssl.SSLCertVerificationError):
        step = _VERIFIED.get(error.verify_code, "check that it is the right peer, and that `tls: {caCert}` fits it")
        return f"certificate verify failed: {error.verify_message}; {step}"
    if not isinstance(error, ssl.SSLError):
        return None
    _, found, alert = reason_of(error).partition(_ALERT)
    if not found:
        return None
    name = alert.lower().replace("_", " ")
    return f"the peer refuses TLS with us ({name}): {_WORDS.get(alert, 'see its log')}"


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason; empty for an error that Python raised, which has no such attribute."""
    return getattr(error, "reason", None) or ""
