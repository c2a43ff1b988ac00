"""Where a lake is: a folder of this machine, or a bucket of an object store. For hub, proof and Spark alike."""
