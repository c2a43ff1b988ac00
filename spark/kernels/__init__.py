"""Computations that Spark's functions do not have: Arrow in, Arrow out, in the workers of any executor.

No session, no table, no file: each is a plain function, tested alone. `transforms/` hands them to Spark.
"""
