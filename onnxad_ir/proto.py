"""ONNX protobuf objects to and from the IR."""

from onnxad_ir.proto_read import from_proto, function_from_proto
from onnxad_ir.proto_write import function_to_proto, to_proto

__all__ = ["from_proto", "function_from_proto", "function_to_proto", "to_proto"]
