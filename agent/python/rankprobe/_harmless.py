# SPDX-License-Identifier: Apache-2.0
"""Environment variables and settings that may be recorded: known names, except those that look like a secret."""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping

ENVIRONMENT = re.compile(
    r"(CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|TORCH|TORCHINDUCTOR|PYTORCH|OMP|MKL|KMP|GLOO|HCCL|ASCEND|HIP|ROCM|XLA|"
    r"FSDP|MEGATRON|DEEPSPEED|TRITON|VLLM)_[A-Z0-9_]+|PYTHONHASHSEED|WORLD_SIZE|LOCAL_WORLD_SIZE|TZ|"
    r"ATEN_CPU_CAPABILITY|TOKENIZERS_PARALLELISM")
# WITHIN marks a secret anywhere in a name, WORDS only as a complete word of it.
WITHIN = ("token", "key", "secret", "passw", "passphrase", "pwd", "psw", "private", "cred", "auth", "cookie", "session", "login", "signature",
          "bearer", "jwt", "licens", "licenc", "access_id", "access-id", "accessid")
WORDS = ("pass", "pw", "pat", "tok", "sas", "sig", "dsn", "aws")
_SOUNDS = f"{'|'.join(WITHIN)}|(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])"
SECRET = re.compile(_SOUNDS, re.IGNORECASE)
# Matches a secret inside a value: "https://user:password@host", "api_key=..", "Authorization: ..".
_INSIDE = re.compile(rf"//[^/\s]*@|(?:{_SOUNDS})[\w.-]*[\"']?\s*[=:]", re.IGNORECASE)


def is_harmless(name: str, value: Any) -> bool:
    """Returns whether a setting may be recorded with its value."""
    return not SECRET.search(name) and not _INSIDE.search(str(value))


def environment(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # Yields name and value of the variables that may be recorded.
    for name, value in variables.items():
        if ENVIRONMENT.fullmatch(name) and (name == "TOKENIZERS_PARALLELISM" or is_harmless(name, value)):
            yield name, value


__all__ = ["ENVIRONMENT", "SECRET", "WITHIN", "WORDS", "environment", "is_harmless"]
