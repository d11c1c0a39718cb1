"""Models of ours as GGUF files, which llama.cpp runs."""

from linnet.interop.gguf_out.export import export_gguf

__all__ = ["export_gguf"]
