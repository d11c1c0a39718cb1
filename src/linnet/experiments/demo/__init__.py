"""The demo: three tiny models on the same stories, side by side, in minutes."""
