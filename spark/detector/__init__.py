"""Streaming anomaly detector: one series of numbers in, a score and its reason for each value out.

Plain Python and numpy, no Spark: the anomaly job runs one for each (device, metric), `waypost lake detect` one for
a file.
"""
