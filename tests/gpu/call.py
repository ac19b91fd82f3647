"""Call a function on a CUDA device that computes nothing: `python -m gpu.call '["module", "function", argument, ...]'`.

The last line of the output is what the function returns, as JSON.
"""

import importlib
import json
import sys

if __name__ == "__main__":
    module, function, *arguments = json.loads(sys.argv[1])
    result = getattr(importlib.import_module(module), function)(*arguments)
    print(f"\n{json.dumps(result)}")
