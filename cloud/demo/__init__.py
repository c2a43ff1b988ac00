"""`waypost demo`: the whole path on one machine, with real devices, a real outage and a real crash."""
