"""PyTorch FSDP2 (Zhao et al., VLDB 2023).

Every rank keeps a shard of parameters, gradients and optimizer state (ZeRO, stage 3). The parameters of a
block, or of a unit of layers, are gathered before use; its gradients are reduce-scattered. No rank ever has
the whole model.
"""

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context
from ranks.worker.trainer import Trainer


def trainer(context: Context) -> Trainer:
    """Return a trainer that shards the model by blocks, or by units of layers if it has none."""
    from torch.distributed.device_mesh import init_device_mesh

    from ranks.libraries.pytorch.collectives import join
    from ranks.libraries.pytorch_sharded import ShardedTrainer, mark_calls

    class FSDPTrainer(ShardedTrainer):
        def distribute(self) -> None:
            self.transport = join(context)
            self.shard(init_device_mesh(self.torch_device.type, (context.ranks,)))
            self.load_shards()
            self.make_shard_optimizer()
            if context.phases.is_traced:
                mark_calls(context, self.torch_device.type == "cuda")

    return FSDPTrainer(context)


def collectives(context: Context) -> Collectives:
    """Return collectives by the process group that carries FSDP's shards."""
    from ranks.libraries.pytorch.collectives import TorchDistributed

    return TorchDistributed(context)
