"""The engine: a training step as allocations and frees, derived from what operations do.

In reading order: `dims` (named dimensions), `tape` (blocks and events), `graph` (a small autograd),
`ops` and `fused_ops` (what each operation allocates, saves and gives back), `tables` (stretches of
operations that several models share). Nothing here knows a family, a stack or an optimizer.
"""
