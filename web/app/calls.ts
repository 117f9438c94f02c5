// SPDX-License-Identifier: Apache-2.0
// The values of a call in the order of dump.json. This file does not decide
// which call of a step was the first bad one; overflow_check does
// (first_bad.ts).
import { double, int } from "./format";
import type { CallEntry, TensorSummary, Value } from "./messages";

export interface Leaf {
  // The name in a comparison's table: "input.0", "output.0.1", "parameters.weight".
  name: string;
  given: boolean;
  tensor?: TensorSummary;
  // The text of a value that is not a tensor.
  text: string;
}

function leaves(value: Value, name: string, given: boolean, out: Leaf[]): void {
  const tensor = value.tensor ?? value.p2p?.tensor;
  if (tensor !== undefined) {
    out.push({ name, given, tensor, text: "" });
  } else if (value.list !== undefined) {
    value.list.items.forEach((item, i) => leaves(item, `${name}.${i}`, given, out));
  } else if (value.map !== undefined) {
    for (const item of value.map.items) leaves(item.value, `${name}.${item.name}`, given, out);
  } else if (value.scalar !== undefined) {
    const { type, i, f, b, s, bigInt } = value.scalar;
    out.push({ name, given, text: `${type} ${s ?? bigInt ?? String(i ?? f ?? b ?? "")}` });
  } else if (value.object !== undefined) {
    out.push({ name, given, text: value.object.text || value.object.ints.join(", ") });
  } else if (value.cut !== undefined) {
    out.push({ name, given, text: `cut (${value.cut.limit})` });
  } else {
    out.push({ name, given, text: "null" });
  }
}

export function leavesOf(entry: CallEntry): Leaf[] {
  const out: Leaf[] = [];
  const { call } = entry;
  const backward = call.kind.endsWith("_BACKWARD");
  // For a backward pass, "input" is the gradient of the outputs, which the call receives.
  call.inputArgs?.items.forEach((value, i) => leaves(value, `input.${i}`, true, out));
  call.inputKwargs?.items.forEach((item) => leaves(item.value, `input.${item.name}`, true, out));
  call.input?.items.forEach((value, i) => leaves(value, `input.${i}`, backward, out));
  call.parameters?.items.forEach((item) => leaves(item.value, `parameters.${item.name}`, true, out));
  call.output?.items.forEach((value, i) => leaves(value, `output.${i}`, false, out));
  call.gradients?.items.forEach((item) => leaves(item.value, item.name, false, out));
  if (call.debug !== undefined) leaves(call.debug, "value", false, out);
  return out;
}

export interface Numbers {
  max?: number;
  min?: number;
  mean?: number;
  norm?: number;
}

export function numbersOf(tensor: TensorSummary): Numbers {
  const { stats } = tensor;
  if (stats === undefined) return {};
  const of = (f?: number | string, i?: number | string, b?: boolean) =>
    f !== undefined ? double(f) : i !== undefined ? int(i) : b !== undefined ? Number(b) : undefined;
  return {
    max: of(stats.maxF, stats.maxI, stats.maxB),
    min: of(stats.minF, stats.minI, stats.minB),
    mean: of(stats.meanF, stats.meanI),
    norm: of(stats.normF, stats.normI),
  };
}

// Whether its elements include a NaN or an infinity. Only the extremes show this, because a norm may be infinite by
// overflow.
export function isBad(tensor: TensorSummary | undefined): boolean {
  if (tensor === undefined) return false;
  const { max, min } = numbersOf(tensor);
  return (max !== undefined && !Number.isFinite(max)) || (min !== undefined && !Number.isFinite(min));
}

// Whether its bytes are in the archive.
export function kept(tensor: TensorSummary): boolean {
  return tensor.payload !== undefined && tensor.payload.lost === "LOSS_REASON_UNSPECIFIED";
}

export function dtypeName(tensor: TensorSummary): string {
  return tensor.dtypeName || `torch.${tensor.dtype.replace(/^DTYPE_/, "").toLowerCase()}`;
}

export function shapeText(tensor: TensorSummary): string {
  return `[${tensor.shape.join(", ")}]`;
}

// Turns "Module.layers.0.fc.Linear.forward.0" into "Module.layers.0.fc.Linear".
export function callName(entry: string): string {
  return entry.replace(/\.\d+\.(forward|backward)$|\.(forward|backward|parameters_grad)(\.\d+)?$/, "");
}
