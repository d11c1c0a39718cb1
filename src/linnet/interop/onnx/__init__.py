"""Export to ONNX: the graphs of a model, their parity check, and an engine that runs them."""
