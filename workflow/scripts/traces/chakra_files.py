"""Write Chakra execution traces: a program for the Python of the environment chakra, which has the schema.

stdin: JSON with the keys "stem" (of the files), "facts" (attributes of every file) and "ranks": for each rank
its nodes (`traces.chakra.Graph.to_json`).

The files STEM.RANK.et are written as mlc-chakra writes its own: messages behind their lengths, first the
metadata. Integers have the types that ASTRA-sim's feeder reads.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.third_party.utils.protolib import encodeMessage

VERSION = "1.0.0"  # as the generator of mlc-chakra writes
INT32, UINT64 = ("comm_src", "comm_dst", "comm_tag"), ("tensor_size",)


def attribute(name: str, value: bool | int | str | list[int]) -> Any:
    """Return an attribute with a value of the type that readers expect under this name."""
    if name == "comm_type":
        return schema.AttributeProto(name=name, int64_val=schema.CollectiveCommType.Value(value))
    if isinstance(value, bool):
        return schema.AttributeProto(name=name, bool_val=value)
    if isinstance(value, str):
        return schema.AttributeProto(name=name, string_val=value)
    if isinstance(value, list):
        return schema.AttributeProto(name=name, int64_list=schema.Int64List(values=value))
    kind = "int32_val" if name in INT32 else "uint64_val" if name in UINT64 else "int64_val"
    return schema.AttributeProto(name=name, **{kind: value})


def encode(content: Mapping[str, Any]) -> Any:
    """Return a node as a message of the schema."""
    values = {**content, "type": schema.NodeType.Value(content["type"])}
    attributes = values.pop("attributes")
    return schema.Node(**values, attr=[attribute(name, value) for name, value in attributes.items()])


def write(stem: str, facts: Mapping[str, Any], ranks: Iterable[Iterable[Mapping[str, Any]]]) -> None:
    """Write a file for each rank."""
    metadata = [attribute(name, value) for name, value in facts.items()]
    for rank, nodes in enumerate(ranks):
        with open(f"{stem}.{rank}.et", "wb") as file:
            encodeMessage(file, schema.GlobalMetadata(version=VERSION, attr=metadata))
            for node in nodes:
                encodeMessage(file, encode(node))


if __name__ == "__main__":
    write(**json.load(sys.stdin))
