"""A message body to its values. Plain Python: no Spark, no clock, no state between messages.

`decoder.py` chooses by registered schema, content type and address; every format is a module of its own. Whatever
comes in, what comes out is values, or reasons why there are none (`value.py`), bounded by `limits.py`.
"""
