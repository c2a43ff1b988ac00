"""Identity of a gateway at its hub: key, certificate, enrolment and renewal."""
