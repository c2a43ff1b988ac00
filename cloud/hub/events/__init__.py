"""Events of the fleet: a stream for programs, and the record of problems that events tell about."""
