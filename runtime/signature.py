# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What makes two calls the same: the key of a compiled module, equal across processes and hash
seeds.
"""

import hashlib
import json

from ..lowering.target import Target
from .cache import versions


def module_key(text: str, target: Target, remat: str = "") -> str:
    """The key of a graph compiled for a target: a digest of all that the result depends on.

    `text` is the graph without source locations, so that moving code does not compile it again;
    what is donated is in it. `remat` are the options of gradopt-rematerialize.
    """
    about = {
        "graph": text,
        "remat": remat,
        "target": [target.identity(), target.driver],
        "flags": [target.flags, [(r.flags, r.process_flags) for r in target.ladder]],
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
