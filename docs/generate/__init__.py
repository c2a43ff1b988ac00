"""The docs site: pages of the reference generated from the code, drawings, and the build.

`PAGES` in `docs.generate.pages` names each generated page; `python -m docs.generate` builds and serves the site.
Modules here read the product and are imported by nothing in it.
"""
