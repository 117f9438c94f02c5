#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies a rank's dump and plants defects in it: plant.py SRC DST [tensors].

One NaN, one infinity, a shape, dtypes, a requires_grad, scaled statistics, two scalars, a missing call, an extra
call. With `tensors` the .pt files change as well: noise, NaN, a shape, a dtype, zeros.
"""
import glob
import json
import os
import shutil
import sys


def leaves(value):
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value
        else:
            for item in value.values():
                yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)


def plant(directory):
    path = os.path.join(directory, "dump.json")
    with open(path) as file:
        dump = json.load(file)
    data = dump["data"]
    keys = list(data)

    def tensors(value):
        return [leaf for leaf in leaves(value) if leaf["type"] == "torch.Tensor"]

    calls = [k for k in keys if k.endswith(".forward") and tensors(data[k].get("output", []))]
    out = [tensors(data[k]["output"])[0] for k in calls]
    stats = ("Max", "Min", "Mean", "Norm")
    out[1].update({s: float("nan") for s in stats})
    out[2]["Max"] = float("inf")
    if len(out) > 3:
        out[3]["shape"] = [7] + out[3]["shape"][1:]
    if len(out) > 4:
        out[4]["dtype"] = "torch.float16"
    if len(out) > 5:
        out[5]["dtype"] = "torch.int32"
    if len(out) > 6:
        out[6]["requires_grad"] = not out[6]["requires_grad"]
    if len(out) > 7:
        out[7].update({s: out[7][s] * 3 + 1 for s in stats if isinstance(out[7][s], float)})
        if "md5" in out[7]:
            out[7]["md5"] = "deadbeef"
    ints = [leaf for k in keys for leaf in leaves(data[k]) if leaf["type"] == "int"]
    if len(ints) > 3:
        ints[3]["value"] = 99
    bools = [leaf for k in keys for leaf in leaves(data[k]) if leaf["type"] == "bool"]
    if bools:
        bools[0]["value"] = not bools[0]["value"]
    del data[keys[len(keys) // 2]]
    extra = {k: v for k, v in tensors(data[keys[0]])[0].items() if k != "data_name"}
    data["Torch.extra.0.forward"] = {"input_args": [extra], "input_kwargs": {}, "output": [None]}
    with open(path, "w") as file:
        json.dump(dump, file, indent=1)


def plant_tensors(directory):
    import torch

    torch.manual_seed(1)
    files = sorted(glob.glob(os.path.join(directory, "dump_tensor_data", "*.pt")))
    for index, path in enumerate(files):
        tensor = torch.load(path, weights_only=True)
        if not tensor.is_floating_point() or tensor.numel() < 2:
            continue
        kind = index % 9
        if kind == 0:
            tensor = tensor * (1 + 1e-3 * torch.randn_like(tensor))
        elif kind == 1:
            tensor.view(-1)[0] = float("nan")
        elif kind == 2:
            tensor = tensor.reshape(-1)
        elif kind == 3:
            tensor = tensor.double()
        elif kind == 4:
            tensor = torch.zeros_like(tensor)
        elif kind == 5:
            tensor = tensor + torch.randn_like(tensor)
        elif kind == 6:
            tensor = tensor.bfloat16()
        torch.save(tensor.clone(), path)


if __name__ == "__main__":
    source, target = sys.argv[1:3]
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    plant(target)
    if "tensors" in sys.argv[3:]:
        plant_tensors(target)
