"""Levels of the factors `precision` and `reduce_dtype`, as the plan, models and ranks compare them."""

FP32 = "fp32"
#: float32 with products in TF32, on accelerators
TF32 = "tf32"
#: weights in float32, products in bfloat16 (automatic mixed precision)
AMP = "amp"
#: weights, optimizer state and products in bfloat16; as a level of reduce_dtype, sums of gradients
BF16 = "bf16"

COMPUTES_IN_BFLOAT16 = (AMP, BF16)
