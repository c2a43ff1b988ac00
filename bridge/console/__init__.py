"""Static files that the consoles of gateway and hub share: styles, components, and libraries under `vendor/`.

Browsers render the pages from the JSON API; nothing here is built. See README.md.
"""
