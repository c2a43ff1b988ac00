"""Resources in, `BrokerConfiguration` out.

`parse` reads YAML into `resources` by way of `schema`, `validate` looks at the whole, `repository` keeps what is
applied, `effective` makes of it what the broker is told.
"""
