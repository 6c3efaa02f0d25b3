"""Megatron-LM's arguments that change no memory, and those whose effect is not modelled.

Names: Megatron-LM `megatron/training/arguments.py` and its dataclasses from v1.0 to commit
d98e8a64, and `torchrun`'s. What doesn't matter is listed by its full name: a pattern would let an
argument through that does.
"""

IGNORED = {
    "how processes start and find each other": """
        --disable-gloo-process-groups --distributed-backend --distributed-timeout-minutes
        --distributed-timeout-seconds-after-init --lazy-mpu-init --local-rank --log-dir --log_dir
        --master-addr --master-port --master_addr --master_port --max-restarts --max_restarts
        --node-rank --node_rank --rdzv-backend --rdzv-conf --rdzv-endpoint --rdzv-id --rdzv_backend
        --rdzv_conf --rdzv_endpoint --rdzv_id --standalone --tee --use-gloo-process-groups
        --use-tp-pp-dp-mapping""",
    "logging and profiling": """
        --app-tag-run-name --app-tag-run-version --barrier-with-L1-time --config-logger-dir
        --log-batch-size-to-tensorboard --log-device-memory-used --log-energy --log-interval
        --log-l2-norm-grad-to-tensorboard --log-loss-scale-to-tensorboard
        --log-memory-interval --log-memory-to-tensorboard --log-num-zeros-in-grad --log-params-norm
        --log-progress --log-runtime-to-tensorboard --log-straggler --log-throughput
        --log-throughput-to-tensorboard --log-timers-to-tensorboard
        --log-validation-ppl-to-tensorboard --log-world-size-to-tensorboard --logging-level
        --memory-snapshot-path --no-barrier-with-level-1-timing --no-one-logger --nvtx-ranges
        --one-logger-async --one-logger-entity --one-logger-project --one-logger-run-name --profile
        --profile-ranks --profile-step-end --profile-step-start --record-memory-history
        --tensorboard-dir --tensorboard-log-interval --tensorboard-queue-size --timing-log-level
        --timing-log-option --use-nsys-profiler --use-pytorch-profiler --wandb-entity
        --wandb-exp-name --wandb-project --wandb-save-dir""",
    "saving and loading": """
        --async-save --auto-detect-ckpt-format --ckpt-assume-constant-structure
        --ckpt-convert-format --ckpt-convert-save --ckpt-convert-update-legacy-dist-opt-format
        --ckpt-drop-redundant-extra-state --ckpt-format --ckpt-fully-parallel-load
        --ckpt-fully-parallel-load-exchange-algo --ckpt-fully-parallel-load-per-rank-objects
        --ckpt-fully-parallel-load-process-group --ckpt-fully-parallel-save
        --ckpt-fully-parallel-save-process-group --ckpt-load-validate-sharding-integrity
        --ckpt-pg-tensors-cache-create --ckpt-pg-tensors-cache-path --ckpt-step --dist-ckpt-format
        --dist-ckpt-optim-fully-reshardable --dist-ckpt-save-pre-mcore-014 --dist-ckpt-strictness
        --dist-ckpt-workers --exit-on-missing-checkpoint --finetune --load
        --load-main-params-from-ckpt --load-optim --load-rng --no-load-optim --no-load-rng
        --no-save-optim --no-save-rng --no-save-tokenizer-assets --non-persistent-ckpt-type
        --non-persistent-global-ckpt-dir --non-persistent-local-ckpt-algo
        --non-persistent-local-ckpt-dir --non-persistent-save-interval
        --override-opt-param-scheduler --override-opt_param-scheduler --pretrained-checkpoint --save
        --save-config-filepath --save-interval --save-optim --save-params-interval
        --save-retain-interval --save-rng --save-tokenizer-assets --use-checkpoint-args
        --use-checkpoint-lr-scheduler --use-checkpoint-opt-param-scheduler
        --use-checkpoint-opt_param-scheduler --use-dist-ckpt --use-mp-args-from-checkpoint-args
        --use-persistent-ckpt-worker""",
    "validation runs between training steps": """
        --eval-global-batch-size --eval-interval --eval-iters --full-validation --skip-train
        --test-mode""",
    "length of training, schedule and hyperparameters: numbers, no tensors": """
        --adam-beta1 --adam-beta2 --adam-eps --apply-wd-to-qk-layernorm --calculate-per-token-loss
        --clip-grad --decoupled-lr --decoupled-min-lr --decoupled-weight-decay --end-weight-decay
        --exit-duration-in-mins --exit-interval --exit-signal --exit-signal-handler
        --exit-signal-handler-for-dataloader --exit-signal-handler-for-training --hysteresis
        --initial-loss-scale --loss-scale --loss-scale-window --lr --lr-decay-iters
        --lr-decay-samples --lr-decay-steps --lr-decay-style --lr-warmup-fraction --lr-warmup-init
        --lr-warmup-iters --lr-warmup-samples --lr-warmup-steps --lr-wsd-decay-iters
        --lr-wsd-decay-samples --lr-wsd-decay-style --min-loss-scale --min-lr
        --no-weight-decay-cond-type --rampup-batch-size --sgd-momentum --start-weight-decay
        --train-iters --train-samples --weight-decay --weight-decay-incr-style""",
    "data, read on the CPU": """
        --chat-template --data-args-path --data-cache-path --data-impl --data-parallel-random-init
        --data-path --data-per-class-fraction --dataloader-type --eod-mask-loss --merge-file
        --mock-data --no-create-attention-mask-in-dataloader --no-data-sharding --no-mmap-bin-files
        --num-dataset-builder-threads --num-workers --per-split-data-args-path
        --reset-attention-mask --reset-position-ids --sft-tokenizer-prompt-format --special-tokens
        --split --test-data-path --tiktoken-num-special-tokens --tiktoken-pattern
        --tiktoken-special-tokens --tokenizer-hf-include-special-tokens
        --tokenizer-hf-no-include-special-tokens --tokenizer-hf-no-use-fast --tokenizer-hf-use-fast
        --tokenizer-metadata --tokenizer-model --tokenizer-sentencepiece-ignore-extra-whitespaces
        --tokenizer-sentencepiece-legacy --tokenizer-special-tokens --tokenizer-type
        --train-data-path --trust-remote-code --valid-data-path --vocab-extra-ids --vocab-file""",
    "seeds, start and faults": """
        --adlr-autoresume --adlr-autoresume-interval --calc-ft-timeouts --check-for-large-grads
        --check-for-nan-in-grad --check-for-nan-in-loss --check-for-spiky-loss --deterministic-mode
        --embedding-init-method-std --enable-ft-package --error-injection-rate
        --error-injection-type --init-method-std --init-method-xavier-uniform
        --inprocess-active-world-size --inprocess-barrier-timeout --inprocess-completion-timeout
        --inprocess-empty-cuda-cache --inprocess-granularity --inprocess-hard-timeout
        --inprocess-heartbeat-interval --inprocess-heartbeat-timeout --inprocess-last-call-wait
        --inprocess-max-iterations --inprocess-monitor-process-interval
        --inprocess-monitor-thread-interval --inprocess-progress-watchdog-interval
        --inprocess-restart --inprocess-soft-timeout --inprocess-termination-grace-time
        --iterations-to-skip --manual-gc --manual-gc-eval --manual-gc-interval
        --no-check-for-nan-in-loss --no-check-for-nan-in-loss-and-grad --no-initialization
        --no-manual-gc-eval --perform-initialization --rerun-mode --seed --te-rng-tracker
        --use-cpu-initialization""",
    "the same tensors, or as Transformer Engine does": """
        --apply-layernorm-1p --attention-softmax-in-fp32 --enable-experimental --layernorm-epsilon
        --layernorm-zero-centered-gamma --make-vocab-size-divisible-by --moe-grouped-gemm
        --no-bias-dropout-fusion --no-bias-gelu-fusion
        --no-masked-softmax-fusion --no-persist-layer-norm
        --no-rope-fusion --norm-epsilon --normalization --onnx-safe
        --position-embedding-type --rope-scaling-factor --rope-type --rotary-base
        --rotary-interleaved --rotary-percent --rotary-scaling-factor
        --rotary-seq-len-interpolation-factor --use-rope-scaling
        --use-rotary-position-embeddings""",
    "communication: views of buffers that are counted, or too small to count": """
        --align-param-gather --cp-comm-type --create-all-gather-group --ddp-average-in-collective
        --ddp-bucket-size --ddp-num-buckets --ddp-pad-buckets-for-high-nccl-busbw
        --high-priority-stream-groups --moe-enable-deepep
        --moe-flex-dispatcher-backend --moe-flex-dispatcher-num-sms --moe-token-dispatcher-type
        --nccl-communicator-config-path --no-align-grad-reduce --no-align-param-gather
        --no-overlap-p2p-communication --overlap-cpu-optimizer-d2h-h2d --overlap-grad-reduce
        --overlap-p2p-comm --overlap-p2p-comm-warmup-flush --overlap-p2p-communication
        --overlap-p2p-communication-warmup-flush --overlap-param-gather --tp-comm-bulk-dgrad
        --tp-comm-bulk-wgrad --use-sharp""",
    "routing is modelled as balanced: give expert_load=": """
        --moe-aux-loss-coeff --moe-input-jitter-eps --moe-per-layer-logging --moe-permute-fusion
        --moe-router-bias-update-rate --moe-router-dtype --moe-router-enable-expert-bias
        --moe-router-force-load-balancing --moe-router-fusion --moe-router-group-topk
        --moe-router-load-balancing-type --moe-router-num-groups --moe-router-pre-softmax
        --moe-router-score-function --moe-router-topk-scaling-factor --moe-z-loss-coeff""",
    "empties the cache: lowers what is reserved, not what is allocated": """
        --decrease-batch-size-if-needed --empty-unused-memory-level""",
}

UNSUPPORTED = {
    "fp8 and fp4 are modelled as bf16": "--fp8-* --fp4-* --te-precision-*",
    "user buffers for communication are not modelled": "--tp-comm-overlap* --use-nccl-ub",
    "gradients are modelled in fp32": "--grad-reduce-in-bf16 --main-grads-dtype=fp32",
    "optimizer states are modelled in fp32": """--use-precision-aware-optimizer --exp-avg-dtype=fp32
        --exp-avg-sq-dtype=fp32 --main-params-dtype=fp32""",
    "Megatron-FSDP and FSDP2 are modelled as the distributed optimizer": """--use-megatron-fsdp
        --use-custom-fsdp --use-torch-fsdp2 --data-parallel-sharding-strategy=no_shard|optim
        --fsdp-double-buffer --outer-dp-sharding-strategy=no_shard
        --num-distributed-optimizer-instances=1""",
    "activations on the CPU are not modelled": """--cpu-offloading-num-layers
        --fine-grained-activation-offloading --offload-modules""",
    "pipeline stages are split evenly": """--decoder-first-pipeline-num-layers
        --decoder-last-pipeline-num-layers --pipeline-model-parallel-layout""",
    "CUDA graphs' private pools are not modelled": """--enable-cuda-graph --external-cuda-graph
        --cuda-graph-*""",
    "tensor parallelism of experts is modelled as that of the rest": """
        --expert-tensor-parallel-size""",
    "mixtures other than equal layers of routed experts are not modelled": """--moe-layer-freq=1
        --moe-shared-expert-* --moe-expert-capacity-factor --moe-pad-expert-input-to-capacity
        --moe-layer-recompute --moe-use-upcycling --moe-token-drop-policy=probs""",
    "this kind of layer is not modelled": """--multi-latent-attention --mtp-num-layers
        --hybrid-* --is-hybrid-model --heterogeneous-* --experimental-attention-variant
        --squared-relu --quick-geglu --window-size --fp32-residual-connection --q-lora-rank
        --kv-lora-rank --qk-head-dim --v-head-dim --encoder-num-layers --decoder-num-layers""",
    "fp32 logits are modelled": "--fp16-lm-cross-entropy --output-logit-dtype=fp32",
    "delayed weight gradients are not modelled": """--defer-embedding-wgrad-compute
        --delay-wgrad-compute --wgrad-deferral-limit""",
    "a file of arguments: give its arguments": "--yaml-cfg",
    "validation's own micro batch is not modelled": "--eval-micro-batch-size",
    "two micro batches at a time are not modelled": """--overlap-moe-expert-parallel-comm
        --overlap-dispatch-backward-with-experts-wgrad""",
    "saved tensors and gradients stay for longer, which is not modelled": """
        --save-activations-interval --save-wgrads-interval --save-dgrads-interval""",
    "further copies of gradients are not modelled": """--ddp-reduce-scatter-with-fp32-accumulation
        --ddp-param-name-patterns-for-fp32-local-accumulation""",
    "a layer of one's own is not modelled": "--spec",
    "saved inputs divided among tensor-parallel ranks are not modelled": """
        --distribute-saved-activations""",
    "positions are modelled as learned or rotary": "--no-position-embedding",
    "a gate written out keeps a further tensor, which is not modelled": "--no-bias-swiglu-fusion",
    "a gradient beside its buffer is not modelled": "--no-gradient-accumulation-fusion",
    "sequences are modelled at their full length": "--sft --variable-seq-lengths",
    "not modelled": """--freeze-all-layers --perform-rl-step --hybrid-context-parallel
        --optimizer-cuda-graph --log-max-attention-logit
        --overlap-param-gather-with-optimizer-step""",
}
