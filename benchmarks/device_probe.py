"""Print what PyTorch detects on this machine, as one line of JSON.

It is run with the Python that trains, after the site's setup lines.
"""

import json
import os
import shutil
import sysconfig

import torch

seen = torch.cuda.is_available()
properties = torch.cuda.get_device_properties(0) if seen else None
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
compilers = [name for name in (os.environ.get("CC"), "gcc", "cc", "clang") if name and shutil.which(name)]

print(json.dumps({
    "torch": torch.__version__,
    "cuda": torch.version.cuda or torch.version.hip,
    "devices": torch.cuda.device_count() if seen else 0,
    "name": properties.name if properties else None,
    "memory_bytes": properties.total_memory if properties else None,
    "cannot_compile": None if compilers and os.path.exists(headers)
        else f"there is no {'C compiler' if not compilers else headers}",
}))  # fmt: skip
