"""Places of a lake: a folder of this machine, or a bucket of an object store. Used by hub, proof and Spark."""
