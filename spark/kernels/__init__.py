"""Computations that Spark has no functions for: Arrow in, Arrow out, on the workers of any executor.

No session, no table, no file: each is a plain function that can be tested alone. `transforms/` hands them to Spark.
"""
