"""ONNX: one exported step of a model, its gate and an engine that runs it."""
