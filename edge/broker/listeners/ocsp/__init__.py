"""Status of client certificates by OCSP (RFC 6960)."""
