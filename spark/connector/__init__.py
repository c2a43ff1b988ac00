"""What Spark reads and writes tables with: jars pinned by SHA-256, brought once at set-up, local files ever after."""
