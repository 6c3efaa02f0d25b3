"""The picture: what a simulation looks like, drawn with matplotlib.

In reading order: `style` (colours, axis steps, numbers in words), `lettering` (fast text),
`placing` (where labels go), `panel` (an axes and its moving artists), `card` (what the card may
show), `sweep` and its two panels `gpu_sweep` and `seq_sweep`, `budget` (the third), `timeline`
(one step over time), `figure` (the static figure), `frames` (the same, fast enough to follow a
slider).
"""
