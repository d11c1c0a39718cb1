"""From text files to batches: sources, tokenizers, token shards, the loader, the built-in stories."""
