"""A mineral lookup, the sample image's application."""
