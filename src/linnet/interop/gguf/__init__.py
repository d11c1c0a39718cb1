"""Models of ours as GGUF files, which llama.cpp runs."""

from linnet.interop.gguf.export import export_gguf

__all__ = ["export_gguf"]
