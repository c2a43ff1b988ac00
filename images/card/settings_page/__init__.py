"""Page that makes and checks the settings of a gateway in a browser: one HTML file, which needs no network."""
