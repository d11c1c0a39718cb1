"""Export of models as a page that any static host serves and that works from its own files alone."""
