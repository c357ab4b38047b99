"""onnxad_cli: the command `onnxad-opt`."""
