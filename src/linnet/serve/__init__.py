"""Serving: OpenAI's interface over HTTP, sessions, a conformance suite, a live page."""
