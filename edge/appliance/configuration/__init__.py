"""Resources in, `BrokerConfiguration` out.

`edge.configuration` has the kinds; `repository` keeps what is applied, `effective` makes of it what the broker is told.
"""
