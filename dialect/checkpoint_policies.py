# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.checkpoint_policies`: what `go.checkpoint` keeps of a function for its backward; the rest is
computed anew. Names are those that `go.tag` gives.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy by its name, and the names of values it speaks of."""

    name: str
    names: tuple[str, ...] = ()


nothing_saveable = Policy("nothing_saveable")
"""Keep nothing but the arguments."""
everything_saveable = Policy("everything_saveable")
"""Keep all that the backward reads, as without a checkpoint."""
dots_saveable = checkpoint_dots = Policy("dots_saveable")
"""Keep the results of products and convolutions."""
dots_with_no_batch_dims_saveable = Policy("dots_with_no_batch_dims_saveable")
"""Keep the results of products without batch axes: those with weights, but not of attention."""
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """Keep the values tagged with one of these names."""
    return Policy("save_only_these_names", names)


def save_anything_except_these_names(*names: str) -> Policy:
    """Keep all values but those tagged with one of these names."""
    return Policy("save_anything_except_these_names", names)


def save_any_names_but_these(*names: str) -> Policy:
    """Keep all tagged values but those with one of these names."""
    return Policy("save_any_names_but_these", names)
