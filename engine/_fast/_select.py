"""Switch between compiled kernels and their plain-Python twins.

A missing extension is an error, never a silent fallback; `KUBENGINE_PURE=1` selects the twins.
"""

import os

PURE = os.environ.get("KUBENGINE_PURE") == "1"
