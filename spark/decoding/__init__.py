"""Decode a message body into its values. Plain Python: no Spark, no clock, no state between messages.

`decoder.py` chooses by registered schema, content type and address; each format has a module. The result of any body is
values, or reasons why there are none (`value.py`), bounded by `limits.py`.
"""
