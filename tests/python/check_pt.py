#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens .pt files the safe way and prints what is in them.

check_pt.py FILE..: one line a file: name, dtype, shape, hex of the first 64
bytes, number of bytes. Exits with 1 at the first file that does not open.
"""

import sys
import warnings
import zipfile

import torch


def main() -> int:
    warnings.simplefilter("ignore")
    for path in sys.argv[1:]:
        assert zipfile.ZipFile(path).testzip() is None, f"{path}: bad CRC"
        tensor = torch.load(path, weights_only=True)
        assert tensor.is_contiguous() and not tensor.requires_grad
        flat = tensor.reshape(-1)
        raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
        print(path.rsplit("/", 1)[-1], tensor.dtype, list(tensor.shape), raw[:64].hex(), len(raw))
    return 0


if __name__ == "__main__":
    sys.exit(main())
