"""Examples of `firmware_examples/` run as processes against a real gateway: driver, spool files and checker."""
