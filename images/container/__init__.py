"""Gateway and hub in containers: what balena and Docker build them from, and OCI images built without either."""
