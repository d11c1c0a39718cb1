"""Models of ours as GGUF files, which llama.cpp runs."""

from linnet.interop.gguf_out.export import GgufExport, export_gguf

__all__ = ["GgufExport", "export_gguf"]
