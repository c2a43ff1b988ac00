"""`waypost lake query`: SQL over the tables of a lake, read only, without a JVM."""
