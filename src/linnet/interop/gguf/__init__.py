"""Export to GGUF files, which llama.cpp runs."""
