"""Models as a page that any static host serves, which works from its own files alone."""
