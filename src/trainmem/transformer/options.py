"""Options of a plan: one table, from which validation and controls derive."""

from __future__ import annotations

from trainmem.transformer.optimizers import OPTIMIZERS
from trainmem.transformer.option import ON_OFF, Option, Settings
from trainmem.transformer.stacks import FRAMEWORKS, KERNELS

FSDP = "torch 2.13, torch/distributed/fsdp/_fully_shard"
HF = "transformers 5.24"
TORCH = "torch 2.13"


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("num_gpus", 8, "GPUs",
               "All GPUs; what tensor, pipeline and context parallelism leave is data-parallel.",
               FSDP, bounds=(1, 1_000_000)),
        Option("micro_batch", 1, "Micro batch", "Sequences per GPU in one forward pass.",
               HF, bounds=(1, 65_536)),
        Option("seq_length", 4096, "Sequence length", "Tokens per sequence.",
               HF, bounds=(1, 2**24)),
        Option("sharding", "zero3", "Sharding",
               "What is divided by the ranks: nothing, optimizer states (1), gradients too (2), "
               "weights too (3).",
               FSDP,
               (("none", "one GPU"), ("ddp", "replicated (DDP)"), ("zero1", "ZeRO-1"),
                ("zero2", "ZeRO-2"), ("zero3", "ZeRO-3 (FSDP2)"))),
        Option("precision", "mixed", "Precision",
               "Types of weights, computation and optimizer.",
               TORCH,
               (("mixed", "bf16 computation over fp32 shards (FSDP2 mixed precision)"),
                ("amp", "bf16 autocast over fp32 weights"),
                ("bf16_master", "bf16 weights and gradients, fp32 master in the optimizer"),
                ("bf16", "everything in bf16"),
                ("fp32", "everything in fp32"))),
        Option("optimizer", "adamw", "Optimizer",
               "Which states it keeps and what its step allocates.",
               f"{TORCH}, torch/optim; bitsandbytes, optim/optimizer.py (8-bit: not traced)",
               rows=OPTIMIZERS),
        Option("attention", "flash", "Attention kernel",
               "Flash never stores the scores; eager does, and they grow with the length squared "
               "(Megatron: its own unfused attention, where neither flash nor Transformer Engine's "
               "runs). "
               "In fp32 PyTorch takes its memory-efficient kernel in place of flash, or, with "
               "grouped heads, none: the scores are stored.",
               f"{HF}; Megatron-Core, dot_product_attention.py",
               (("flash", "flash (SDPA)"), ("eager", "eager"))),
        Option("loss_head", "transformers", "Loss head",
               "How logits become a loss: whole fp32 logits, one chunk of tokens at a time "
               "(recomputed in backward), or fused with the head, gradients made in forward.",
               f"{HF}, loss_utils.py; Liger-Kernel, fused_linear_cross_entropy.py",
               (("transformers", "full fp32 logits"), ("chunked", "a chunk of tokens at a time"),
                ("fused", "fused linear cross entropy"),
                ("held", "full fp32 logits and a shifted copy (transformers before 4.45)"),
                ("returned", "the same, and the caller keeps the model's output"),
                ("compiled", "compiled cross entropy on bf16 logits"),
                ("pieces", "cross entropy of the logits in pieces (torchtune, litgpt)"),
                ("parallel", "fp32 logits turned into their gradient in place (Megatron)"),
                ("in_place", "fused cross entropy in place (Megatron)"))),
        Option("loss_chunk", 1024, "Loss chunk", "Tokens in one chunk of the chunked loss head.",
               "torchtune, linear_cross_entropy.py", bounds=(1, 2**20)),
        Option("checkpointing", "full", "Activation checkpointing",
               "Keep only each layer's input and recompute the layer in backward; or keep the "
               "outputs of every second matrix product and of attention (Megatron: all but "
               "attention's).",
               "torch.utils.checkpoint, non-reentrant; torchtitan, activation_checkpoint.py; "
               "Megatron-Core, recompute_granularity",
               (("none", "none"), ("selective", "selected operations"), ("full", "every layer"),
                ("every_2nd", "every second layer, from the second on"))),
        Option("accumulation", 1, "Gradient accumulation", "Micro batches per optimizer step.",
               TORCH, bounds=(1, 65_536)),
        Option("no_sync", False, "Accumulate without reducing",
               "Keep whole gradients until the last micro batch (ZeRO-1 always does).",
               FSDP, ON_OFF),
        Option("keep_gradients", False, "Keep gradient buffers",
               "zero_grad(set_to_none=False): gradients stay allocated through the forward pass.",
               TORCH, ON_OFF),
        Option("wrapping", "layers", "FSDP groups",
               "Embedding and head gathered for the whole step, or in groups of their own.",
               FSDP, (("layers", "with the root"), ("split", "apart"))),
        Option("reduce_dtype", "float32", "Gradient reduction type",
               "Type in which FSDP2 mixed precision reduces gradients.",
               FSDP, (("float32", "fp32"), ("bfloat16", "bf16"))),
        Option("dropout", False, "Dropout",
               "Dropout above zero: masks are kept. GPT-2 and Megatron drop outputs too, Llama and "
               "its kin attention weights only, of which flash attention keeps no mask.",
               HF, ON_OFF),
        Option("use_cache", False, "Keys and values kept",
               "The model is called with use_cache=True. Without checkpointing most of them are "
               "saved for the backward pass anyway; transformers turns it off where it checkpoints "
               "layers, but nobody does where FSDP's or torch's wrapper does: then all stay.",
               f"{HF}, cache_utils.py: traced without checkpointing; with it by arithmetic",
               ON_OFF),
        Option("varying_lengths", False, "Varying lengths",
               "Sequences of many lengths, `seq_length` the longest: only what is reserved "
               "changes, for blocks of one length do not serve another.",
               "16 published ms-swift runs", ON_OFF),
        Option("framework", "torch", "Framework", "Who keeps and shards the states.",
               "Megatron-Core, distrib_optimizer.py; DeepSpeed, runtime/zero",
               rows=FRAMEWORKS),
        Option("kernels", "transformers", "Kernels",
               "Whose layers run: which tensors exist, and which are saved for the backward pass.",
               "the stacks' sources and published measurements; see `trainmem.transformer.stacks`",
               rows=KERNELS),
        Option("tp", 1, "Tensor parallel", "GPUs that share each layer's products.",
               "arXiv 1909.08053", bounds=(1, 1024)),
        Option("sequence_parallel", True, "Sequence parallel",
               "Whether tensor parallelism divides norms and residuals too.",
               "arXiv 2205.05198", ON_OFF),
        Option("pp", 1, "Pipeline parallel", "Stages, each with its share of the layers.",
               "arXiv 2104.04473", bounds=(1, 1024)),
        Option("vpp", 1, "Chunks per stage",
               "Model chunks on each pipeline stage: 1 is 1F1B, more is interleaved.",
               "arXiv 2104.04473", bounds=(1, 1024)),
        Option("cp", 1, "Context parallel", "GPUs that share each sequence.",
               "Megatron-Core, context_parallel; torchtitan", bounds=(1, 4096)),
        Option("ep", 1, "Expert parallel", "GPUs that share the experts.",
               "Megatron-Core, moe", bounds=(1, 4096)),
        Option("expert_load", 100, "Expert load",
               "Tokens that the fullest GPU's experts get, in percent of balanced routing.",
               "balanced routing is 100", bounds=(100, 100_000)),
        Option("lora_rank", 0, "LoRA rank", "Rank of the adapters; 0 trains all weights.",
               "arXiv 2106.09685; peft", bounds=(0, 65_536)),
        Option("lora_targets", "qv", "LoRA targets", "Which products have an adapter.",
               "peft; litgpt",
               (("qv", "queries and values"), ("qkv", "queries, keys, values"),
                ("attention", "queries, keys, values, output"),
                ("all", "every product of a layer"), ("all_head", "every product and the head"))),
        Option("quantization", "none", "Frozen base",
               "How the frozen weights of layers are stored under LoRA (QLoRA).",
               "bitsandbytes: blocks of 64 with an fp32 scale; arXiv 2305.14314",
               (("none", "as they are"), ("nf4", "4 bits"), ("nf4_double", "4 bits, scales too"),
                ("int8", "8 bits"))),
        Option("offload", "none", "CPU offload", "What is kept in CPU memory.",
               "DeepSpeed, offload_optimizer and offload_param; FSDP2 CPUOffloadPolicy",
               (("none", "nothing"), ("optimizer", "optimizer states"),
                ("all", "optimizer states, gradients and weights"))),
        Settings("settings", (), "Framework's settings",
                 "What the framework's own configuration says beyond these options; "
                 "`FRAMEWORKS[name].settings` lists it.",
                 "each with its source in the framework's table"),
    )
}  # fmt: skip
