"""The messages of the Open Inference Protocol over gRPC, built from a description here: no generated code.

In a pool of their own, because other libraries in the process may bring the same messages.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "inference"
SERVICE = f"{_PACKAGE}.GRPCInferenceService"

# one line a message: its fields as in a .proto file; `*` is repeated, `>` is a map from text, `|` is of the one choice
_DESCRIBED = """
ServerLiveRequest
ServerLiveResponse: bool live 1
ServerReadyRequest
ServerReadyResponse: bool ready 1
ModelReadyRequest: string name 1, string version 2
ModelReadyResponse: bool ready 1
ServerMetadataRequest
ServerMetadataResponse: string name 1, string version 2, *string extensions 3
ModelMetadataRequest: string name 1, string version 2
TensorMetadata: string name 1, string datatype 2, *int64 shape 3
ModelMetadataResponse: string name 1, *string versions 2, string platform 3, *TensorMetadata inputs 4, *TensorMetadata outputs 5
InferParameter: |bool bool_param 1, |int64 int64_param 2, |string string_param 3, |double double_param 4, |uint64 uint64_param 5
InferTensorContents: *bool bool_contents 1, *int32 int_contents 2, *int64 int64_contents 3, *uint32 uint_contents 4, \
*uint64 uint64_contents 5, *float fp32_contents 6, *double fp64_contents 7, *bytes bytes_contents 8
InferInputTensor: string name 1, string datatype 2, *int64 shape 3, >InferParameter parameters 4, \
InferTensorContents contents 5
InferRequestedOutputTensor: string name 1, >InferParameter parameters 2
ModelInferRequest: string model_name 1, string model_version 2, string id 3, >InferParameter parameters 4, \
*InferInputTensor inputs 5, *InferRequestedOutputTensor outputs 6, *bytes raw_input_contents 7
InferOutputTensor: string name 1, string datatype 2, *int64 shape 3, >InferParameter parameters 4, \
InferTensorContents contents 5
ModelInferResponse: string model_name 1, string model_version 2, string id 3, >InferParameter parameters 4, \
*InferOutputTensor outputs 5, *bytes raw_output_contents 6
ModelConfigRequest: string name 1, string version 2
ModelInput: string name 1, DataType data_type 2, *int64 dims 4
ModelOutput: string name 1, DataType data_type 2, *int64 dims 3
ModelConfig: string name 1, string platform 2, string backend 17, int32 max_batch_size 4, \
*ModelInput input 5, *ModelOutput output 6
ModelConfigResponse: ModelConfig config 1
ModelStatisticsRequest: string name 1, string version 2
StatisticDuration: uint64 count 1, uint64 ns 2
InferStatistics: StatisticDuration success 1, StatisticDuration fail 2, StatisticDuration queue 3, \
StatisticDuration compute_input 4, StatisticDuration compute_infer 5, StatisticDuration compute_output 6, \
StatisticDuration cache_hit 7, StatisticDuration cache_miss 8
InferBatchStatistics: uint64 batch_size 1, StatisticDuration compute_input 2, StatisticDuration compute_infer 3, \
StatisticDuration compute_output 4
ModelStatistics: string name 1, string version 2, uint64 last_inference 3, uint64 inference_count 4, uint64 execution_count 5, \
InferStatistics inference_stats 6, *InferBatchStatistics batch_stats 7
ModelStatisticsResponse: *ModelStatistics model_stats 1
RepositoryIndexRequest: string repository_name 1, bool ready 2
ModelIndex: string name 1, string version 2, string state 3, string reason 4
RepositoryIndexResponse: *ModelIndex models 1
ModelRepositoryParameter: |bool bool_param 1, |int64 int64_param 2, |string string_param 3, |bytes bytes_param 4
RepositoryModelLoadRequest: string repository_name 1, string model_name 2, >ModelRepositoryParameter parameters 3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: string repository_name 1, string model_name 2, >ModelRepositoryParameter parameters 3
RepositoryModelUnloadResponse
"""
_DATA_TYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
_Field = descriptor_pb2.FieldDescriptorProto
_CHOICE = "parameter_choice"


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="flatout/open_inference.proto", package=_PACKAGE, syntax="proto3")
    types = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DATA_TYPES.split()):
        types.value.add(name=f"TYPE_{name}", number=number)
    for line in _DESCRIBED.strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for written in fields.split(",") if fields else ():
            _add_field(message, *written.split())
    return file


def _add_field(message: Any, kind: str, name: str, number: str) -> None:
    mark, plain = (kind[0], kind[1:]) if kind[0] in "*>|" else ("", kind)
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_REPEATED if mark in ("*", ">") else 1)
    if mark == ">":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "string", "key", "1")
        _add_field(entry, plain, "value", "2")
        plain = f"{message.name}.{entry.name}"
    if mark == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name=_CHOICE)
        field.oneof_index = 0
    if plain[0].islower():
        field.type = _Field.Type.Value(f"TYPE_{plain.upper()}")
    else:
        field.type = _Field.TYPE_ENUM if plain == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{plain}"


_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_described().SerializeToString())


def message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
