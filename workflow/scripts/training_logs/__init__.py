"""Read logs of trainings: MLPerf, Megatron-LM, torchtitan, Lightning, HF Trainer, tables of steps."""
