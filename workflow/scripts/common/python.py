"""Name the running Python the way wheels and locks do. Standard library only."""

import sys
import sysconfig


def python_abi() -> str:
    """Return the running Python's ABI and platform, such as cp311-linux_x86_64."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}-{platform}"
