"""The version, for the build, for `ltrag --version`, and for what is saved."""

__version__ = "0.1.0"
