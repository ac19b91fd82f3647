"""Check that the package's reader decodes a node that was written with its schema.

environments.two_ranks starts two of these programs.
"""

import io
import json
import os
from pathlib import Path

from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.third_party.utils.protolib import decodeMessage, encodeMessage

DURATION = 131


def main() -> None:
    """Encode a node, decode it, and write its duration."""
    file = io.BytesIO()
    encodeMessage(file, schema.Node(id=1, type=schema.COMP_NODE, duration_micros=DURATION))
    file.seek(0)
    node = schema.Node()
    if not decodeMessage(file, node) or node.duration_micros != DURATION:
        raise SystemExit(f"a node has a duration of {node.duration_micros}, expected {DURATION}")
    result = {"framework": "chakra", "found": float(node.duration_micros)}
    (Path(os.environ["RINGSIDE_MEETING"]) / f"rank{os.environ['RINGSIDE_RANK']}.json").write_text(
        json.dumps(result)
    )


if __name__ == "__main__":
    main()
