"""DeepSpeed's own engine on the CPU, under the tracer's log: see the README in the folder above."""
