"""Values at which servers go wrong: odd names, versions, shapes, numbers, parameters."""

from __future__ import annotations

from random import Random
from typing import Any

ODD_DIMENSIONS = (0, -1, -2, 1 << 31, (1 << 63) - 1, -(1 << 63), 65537, 1025, 1024, 513, 2, 3, 5)
ODD_DATATYPES = (
    *("", "BYTES", "FP16", "FP64", "INT8", "UINT64", "BF16", "int64", "FP32 ", "TYPE_FP32", "\0", "ÄÖ"),
)
ODD_NAMES = (
    *("", "x", "X", "nothing", "two_outputs", "a" * 5000, "\n\x1b[31m", "中文", "../../etc/passwd", "%s%n{}"),
)
ODD_VERSIONS = ("0", "2", "-1", "1.0", "9" * 300, " 1", "latest")
ODD_INTEGERS = (0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63))
PARAMETERS = (
    *("exact", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"),
    *("classification", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
    *("binary_data_size", "content_type", "headers", "triton_enable_empty_final_response", "", "é"),
)
NUMBERS = (0.0, -0.0, 1.0, 0.5, 3e38, -3e38, 1e-40, float("nan"), float("inf"), float("-inf"))


def put_parameter(parameter: Any, rng: Random) -> None:
    """Gives a parameter a value of any type, or none."""
    field, values = rng.choice(
        (
            ("bool_param", (True, False)),
            ("int64_param", ODD_INTEGERS),
            ("string_param", ("", "1", "a" * 3000, "中")),
            ("double_param", NUMBERS),
            ("", (None,)),
        )
    )
    if field in parameter.DESCRIPTOR.fields_by_name:
        setattr(parameter, field, rng.choice(values))
