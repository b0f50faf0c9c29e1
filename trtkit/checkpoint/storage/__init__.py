"""How sources keep their linear layers: plain, or quantized by one of the tools in use."""
