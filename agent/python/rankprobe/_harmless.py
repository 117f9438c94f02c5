# SPDX-License-Identifier: Apache-2.0
"""What of an environment may be told: names that are known to be harmless, and none that sounds like a secret."""

from __future__ import annotations

import re
from typing import Iterator, Mapping

ENVIRONMENT = re.compile(
    r"(CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|TORCH|TORCHINDUCTOR|PYTORCH|OMP|MKL|KMP|GLOO|HCCL|ASCEND|HIP|ROCM|XLA|"
    r"FSDP|MEGATRON|DEEPSPEED|TRITON|VLLM)_[A-Z0-9_]+|PYTHONHASHSEED|WORLD_SIZE|LOCAL_WORLD_SIZE|TZ|"
    r"ATEN_CPU_CAPABILITY|TOKENIZERS_PARALLELISM")
SECRET = re.compile(r"token|key|secret|passw|cred|auth|cookie|session|login|signature|bearer", re.IGNORECASE)


def environment(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        if ENVIRONMENT.fullmatch(name) and not SECRET.search(name):
            yield name, value


__all__ = ["ENVIRONMENT", "SECRET", "environment"]
