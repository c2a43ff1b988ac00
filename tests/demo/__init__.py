"""`./waypost demo`: the whole path on one machine, with real devices, a real outage and a real crash.

A workload like the benchmarks: it starts the product's commands as processes, and checks their results.
"""
