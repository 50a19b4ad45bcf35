"""Data sets from installed packages, each with a commented pipeline.toml."""
