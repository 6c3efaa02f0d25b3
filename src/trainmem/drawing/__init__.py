"""What `trainmem.figure` and `trainmem.frames` draw with.

In reading order: `style` (colours, axis steps, numbers in words), `lettering` (fast text),
`placing` (where labels go), `panel` (an axes and its moving artists), `sweeps` and `budget`
(the three panels).
"""
