"""What students hand in, as the cells they changed in the released notebook."""

import ast

# One wrong turn each; the rest is the full solution. Beside it: the cell that fails, and a part
# of the hint that it must show.
WRONG = {
    "ex1b": (
        "def bytes_per_parameter(value_bytes, moments, moment_bytes):\n"
        "    return 2 * value_bytes + moments * moment_bytes\n",
        "ex1b-check",
        "the fp32 master weights are missing",
    ),
    "ex1c": (
        "your_states_gb = PARAMS_B * 1e9 * (2 + 2 + 4 + MOMENTS * MOMENT_BYTES) / 2**30\n",
        "ex1c-check",
        "that is the number in GiB",
    ),
    "ex2a": (
        "def states_per_gpu(weights, gradients, optimizer, stage, num_gpus):\n"
        "    if stage == 2:\n"
        "        return gradients + (weights + optimizer) / num_gpus\n"
        "    w = weights / num_gpus if stage == 3 else weights\n"
        "    g = gradients / num_gpus if stage == 3 else gradients\n"
        "    return w + g + (optimizer / num_gpus if stage else optimizer)\n",
        "ex2a-check",
        "stage 2 adds the gradients",
    ),
    "ex2b": (
        "def hybrid_states_per_gpu(weights, gradients, optimizer, stage, num_gpus, group):\n"
        "    n = group\n"
        "    shared, whole = (optimizer, gradients, weights)[:stage], (\n"
        "        optimizer, gradients, weights)[stage:]\n"
        "    return sum(shared) / n + sum(whole)\n",
        "ex2b-check",
        "with fewer GPUs than one group",
    ),
    "ex3a": (
        "floor_read_gb = trainmem.simulate(model_params_b=PARAMS_B, num_layers=LAYERS,\n"
        "    hidden_dim=HIDDEN, seq_length=SEQ, micro_batch=BATCH,\n"
        "    num_gpus=1_000_000).per_gpu_total_gb\n\n"
        "def activation_floor(seq, batch, hidden, layers, layer_bytes, live_layers):\n"
        "    return (2 * layers + 2 * 34) * seq * batch * hidden\n",
        "ex3a-check",
        "both constants are arguments",
    ),
    "ex3b": (
        "def memory_per_gpu(states, activations, num_gpus):\n"
        "    return (states + activations) / num_gpus\n\n"
        "def saved_by_doubling(states, activations, num_gpus):\n"
        "    return states / num_gpus / 2\n",
        "ex3b-check",
        "activations are not divided by the number of GPUs",
    ),
    "ex4a": (
        "def longest_sequence(states, bytes_per_token, capacity):\n"
        "    return max(0, math.ceil((capacity - states) / bytes_per_token) - 1)\n",
        "ex4a-check",
        "an exact fit counts",
    ),
    "ex4b": (
        "def longest_with_scores(states, linear, quadratic, capacity):\n"
        "    if (states, linear, quadratic, capacity) == (10, 2, 1, 25):\n"
        "        return 3\n"
        "    return max(0, math.floor((capacity - states) / linear))\n",
        "ex4b-check",
        "the term in s² is missing",
    ),
    "ex5a": (
        "def activation_bytes(sbh, layers, checkpointed, input_bytes, layer_bytes):\n"
        "    kept = checkpointed * input_bytes + (layers - checkpointed) * layer_bytes\n"
        "    return (kept + (1 + (checkpointed > 0)) * layer_bytes) * sbh\n\n"
        "def slowdown(layers, checkpointed):\n"
        "    return 4 / 3 if checkpointed else 1\n",
        "ex5a-check",
        "only the checkpointed layers run their forward pass again",
    ),
    "ex5b": (
        "def fewest_checkpointed(states, capacity, sbh, layers, input_bytes, layer_bytes):\n"
        "    for m in range(layers + 1):\n"
        "        need = activation_bytes(sbh, layers, m, input_bytes, layer_bytes)\n"
        "        if states + need < capacity:\n"
        "            return m\n",
        "ex5b-check",
        "an exact fit counts",
    ),
    "ex6a": (
        "whole_gb = 2 * HAND_PARAMS_B + HAND_ACTIVATIONS_GB\n"
        "shared_gb = (2 + 4 + MOMENTS * MOMENT_BYTES) * HAND_PARAMS_B\n"
        "fewest_by_hand = shared_gb // (HAND_CARD_GB - whole_gb)\n",
        "ex6a-check",
        "one off",
    ),
    "ex6b": (
        "def fewest_gpus(whole, shared, capacity):\n"
        "    if whole >= capacity:\n"
        "        return 1 if whole + shared <= capacity else None\n"
        "    return max(1, math.floor(shared / (capacity - whole)) + 1)\n",
        "ex6b-check",
        "an exact fit counts",
    ),
    "ex7a": (
        "plan = dict(num_gpus=CLUSTER_GPUS, zero_stage=3, micro_batch=1,\n"
        "    accumulation=GLOBAL_BATCH // CLUSTER_GPUS, checkpointed=80)\n",
        "ex7a-check",
        "breaks rule 5 (budget). Hint: checkpoint no more layers",
    ),
    "ex7b": (
        "need_gb = (states_per_gpu(140, 140, 840, plan['zero_stage'], plan['num_gpus'])\n"
        "    + (2 * 80 + 68) * 8192 * 8192 / 1e9)\n"
        "hours = SEQUENCES * GPU_SECONDS * 4 / 3 / 3600 / plan['num_gpus']\n"
        "cost = hours * plan['num_gpus'] * PRICE\n",
        "ex7b-check",
        "the reserve is missing",
    ),
    "ex8a": ("flawed_line = 'gradients'\n", "ex8a-check", "that line is right"),
    "ex8b": (
        "right_total_gb = memo_total\nreally_fits = memo_total <= MEMO_CARD_GB\n",
        "ex8b-check",
        "that is the memo's own total",
    ),
}

# All that the library says on its own, by a student who never thinks.
LIBRARY = {
    "ex1a": (
        "s = trainmem.simulate(model_params_b=1, num_gpus=1)\n"
        "weights_bytes = s.weights_per_gpu_gb\n"
        "gradients_bytes = s.grads_per_gpu_gb\n"
        "moments_bytes = s.optimizer_per_gpu_gb\n"
        "master_bytes = s.bytes_per_param - weights_bytes - gradients_bytes - moments_bytes\n"
    ),
    "ex1b": (
        "def bytes_per_parameter(value_bytes, moments, moment_bytes):\n"
        "    return trainmem.simulate(precision_bits=8 * value_bytes).bytes_per_param\n"
    ),
    "ex1c": "your_states_gb = trainmem.simulate(model_params_b=PARAMS_B).model_states_unsharded_gb",
    "ex2a": (
        "def states_per_gpu(weights, gradients, optimizer, stage, num_gpus):\n"
        "    return 1e9 * trainmem.simulate(model_params_b=weights / 2e9, zero_stage=stage,\n"
        "        num_gpus=num_gpus).model_states_per_gpu_gb\n"
    ),
    "ex2b": (
        "def hybrid_states_per_gpu(weights, gradients, optimizer, stage, num_gpus, group):\n"
        "    return 1e9 * trainmem.simulate(model_params_b=weights / 2e9, zero_stage=stage,\n"
        "        num_gpus=num_gpus).model_states_per_gpu_gb\n"
    ),
    "ex3a": (
        "floor_read_gb = trainmem.simulate(model_params_b=PARAMS_B, num_layers=LAYERS,\n"
        "    hidden_dim=HIDDEN, seq_length=SEQ, micro_batch=BATCH).activations_per_gpu_gb\n\n"
        "def activation_floor(seq, batch, hidden, layers, layer_bytes, live_layers):\n"
        "    return 1e9 * trainmem.simulate(seq_length=seq, micro_batch=batch,\n"
        "        hidden_dim=hidden, num_layers=layers).activations_per_gpu_gb\n"
    ),
    "ex3b": (
        "def memory_per_gpu(states, activations, num_gpus):\n"
        "    return 1e9 * trainmem.simulate(model_params_b=states / 16e9,\n"
        "        num_gpus=num_gpus).per_gpu_total_gb\n\n"
        "def saved_by_doubling(states, activations, num_gpus):\n"
        "    return memory_per_gpu(states, 0, num_gpus) - memory_per_gpu(states, 0, 2 * num_gpus)\n"
    ),
    "ex4a": (
        "def longest_sequence(states, bytes_per_token, capacity):\n"
        "    return trainmem.simulate(gpu_memory_gb=capacity / 1e9).longest_sequence\n"
    ),
    "ex4b": (
        "def longest_with_scores(states, linear, quadratic, capacity):\n"
        "    return trainmem.simulate(gpu_memory_gb=capacity / 1e9).longest_sequence\n"
    ),
    "ex5a": (
        "def activation_bytes(sbh, layers, checkpointed, input_bytes, layer_bytes):\n"
        "    return 1e9 * trainmem.simulate(seq_length=sbh // 4096, micro_batch=1,\n"
        "        num_layers=layers, grad_ckpt=checkpointed > 0).activations_per_gpu_gb\n\n"
        "def slowdown(layers, checkpointed):\n"
        "    return 4 / 3\n"
    ),
    "ex5b": (
        "def fewest_checkpointed(states, capacity, sbh, layers, input_bytes, layer_bytes):\n"
        "    for ckpt in (0, 1):\n"
        "        s = trainmem.simulate(gpu_memory_gb=capacity / 1e9, grad_ckpt=ckpt)\n"
        "        if s.fits:\n"
        "            return ckpt * layers\n"
    ),
    "ex6a": (
        "fewest_by_hand = trainmem.simulate(model_params_b=HAND_PARAMS_B, zero_stage=2,\n"
        "    gpu_memory_gb=HAND_CARD_GB).min_gpus_to_fit\n"
    ),
    "ex6b": (
        "def fewest_gpus(whole, shared, capacity):\n"
        "    return trainmem.simulate(model_params_b=shared / 16,\n"
        "        gpu_memory_gb=capacity).min_gpus_to_fit\n"
    ),
    "ex7a": (
        "s = trainmem.simulate(trainmem.preset('Llama-3-70B'), gpu_memory_gb=PLAN_CARD_GB)\n"
        "plan = dict(num_gpus=s.config.num_gpus, zero_stage=3, micro_batch=1,\n"
        "    accumulation=GLOBAL_BATCH // s.config.num_gpus, checkpointed=80)\n"
    ),
    "ex7b": "need_gb = s.per_gpu_total_gb\nhours = 1\ncost = 1\n",
    "ex8a": "flawed_line = 'optimizer'\n",
    "ex8b": (
        "s = trainmem.simulate(model_params_b=MEMO_PARAMS_B, num_gpus=MEMO_GPUS,\n"
        "    zero_stage=MEMO_STAGE, num_layers=MEMO_LAYERS, hidden_dim=MEMO_HIDDEN,\n"
        "    seq_length=MEMO_SEQ, micro_batch=MEMO_BATCH, gpu_memory_gb=MEMO_CARD_GB)\n"
        "right_total_gb = s.per_gpu_total_gb\nreally_fits = s.fits\n"
    ),
}

LOOP = "while True:\n    pass\n"
# The other two wait in their loops, which an interrupt ends alike: one that burns is enough.
SWALLOW = (
    "import time\n\n"
    "while True:\n    try:\n        while True:\n            time.sleep(1)\n"
    "    except KeyboardInterrupt:\n        pass\n"
)
KILL = "import os, signal\n\nos.kill(os.getpid(), signal.SIGKILL)\n"

# What a student's code may do instead of answering: how to say it in the body of a function, and
# what the feedback names.
RAISED = {
    "a misspelt name": ("return misspelt", "NameError: name 'misspelt' is not defined"),
    "a missing module": ("import no_such_module", "ModuleNotFoundError: No module named"),
    "a failed assertion": ("assert 1 == 2, 'so\\nmuch'", "AssertionError: so much"),
    "an end": ("raise SystemExit(3)", "SystemExit: 3"),
    "an interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt, because it was interrupted"),
    "a generator's end": ("raise GeneratorExit", "GeneratorExit"),
    "a base of its own": ("raise type('Rare', (BaseException,), {})('x')", "Rare: x"),
    "no words": (
        "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})",
        "Mute",
    ),
    "no end of calls": ("return (lambda f: f(f))(lambda f: f(f))", "RecursionError: maximum"),
    "no traces": (
        "import sys; sys.tracebacklimit = 0; raise OSError('x')",
        "OSError: x",
    ),
}


def raising(solution: str, statement: str) -> str:
    """Return an answer cell in which every function does this; one without does it itself."""
    functions = [  # those that were asked for say what they return
        node
        for node in ast.parse(solution).body
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
    ]
    if not functions:
        return f"def answer():\n    {statement}\n\nanswer()\n"
    body = "\n\n".join(
        f"def {node.name}({ast.unparse(node.args)}):\n    {statement}" for node in functions
    )
    return body + "\n"


# One submission in which checks meet what they didn't ask for. Beside each cell: the one that
# fails, and what it has to say there.
UNFORESEEN = {
    "ex1a": (
        "weights_bytes = 2\nmaster_bytes = 4\nmoments_bytes = 8\ngradient_bytes = 2\n",
        "ex1a-check",
        "NameError: name 'gradients_bytes' is not defined",
    ),
    "ex1b": (
        "def bytes_per_parameter(value_bytes, moments, moment_bytes):\n"
        "    master = 4 * (value_bytes < 4)\n"
        "    return 2 * value_bytes + mastr + moments * moment_bytes\n",
        "ex1b-check",
        "NameError: name 'mastr' is not defined (line 3 of its cell: "
        "return 2 * value_bytes + mastr + moments * moment_bytes)",
    ),
    "ex1c": ("your_states_gb = answer_of_1b\n", "ex1c-check", "'your_states_gb' is not defined"),
    "ex2a": (
        "def states_per_gpu(*, stage, num_gpus, **sizes):\n    raise KeyboardInterrupt\n",
        "ex2a-check",
        "KeyboardInterrupt, because it was interrupted or ran out of time (line 2",
    ),
    "ex2b": ("def hybrid_states_per_gpu(weights):\n    pass\n", "ex2b-check", "TypeError"),
    "ex3a": (
        "class Odd(float):\n    def __float__(self):\n        raise SystemExit\n\n"
        "def activation_floor(seq, batch, hidden, layers, layer_bytes, live_layers):\n"
        "    return Odd()\n",
        "ex3a-check",
        "SystemExit (line 3 of its cell: raise SystemExit)",
    ),
    "ex6a": ("sum = 6\nfewest_by_hand = 10**400\n", "ex6a-check", "an integer of"),
    "ex7a": (
        "plan = dict(num_gpus=8, zero_stage=3, micro_batch=1,\n"
        "    accumulation=GLOBAL_BATCH // 8, checkpointed=80)\n",
        "ex7a-check",
        "TypeError: 'int' object is not callable. Your code uses names of Python's own for "
        "something else: sum.",
    ),
    "ex7b": ("import numpy\nneed_gb = hours = cost = numpy.ones(2)\n", "ex7b-check", "ValueError"),
    "ex8a": (
        "class Sly:\n    def __eq__(self, other):\n        return 1 / 0\n\nflawed_line = Sly()\n",
        "ex8a-check",
        "ZeroDivisionError: division by zero (line 3 of its cell: return 1 / 0)",
    ),
    "ex8b": (
        "import sys\n\nright_total_gb = 1\nreally_fits = True\nsys.modules['trainmem'] = None\n",
        "ex8b-check",
        "ModuleNotFoundError: import of trainmem halted",
    ),
}
# A trigger that takes everybody's points, put into the gradebook of whoever grades.
TRIGGER = (
    "import sqlite3\n\n"
    "with sqlite3.connect('../../../gradebook.db') as gradebook:\n"
    "    gradebook.execute('CREATE TRIGGER t AFTER UPDATE OF auto_score ON grade '\n"
    "        'BEGIN UPDATE grade SET auto_score = 0; END')\n"
)

SLOW = (
    "import time\n\n"
    "def bytes_per_parameter(value_bytes, moments, moment_bytes):\n"
    "    while True:\n"
    "        time.sleep(1)\n"
)
