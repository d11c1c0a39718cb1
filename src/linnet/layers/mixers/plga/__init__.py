"""Power-law graph attention (PLDR-LLM)."""
