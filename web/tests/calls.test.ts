// SPDX-License-Identifier: Apache-2.0
import assert from "node:assert/strict";
import { test } from "node:test";
import { callName, dtypeName, isBad, leavesOf, numbersOf } from "../app/calls";
import type { CallEntry, TensorSummary } from "../app/messages";

const tensor = (stats: object, more: object = {}) => ({ dtype: "DTYPE_FLOAT32", shape: ["2", "3"], stats, ...more }) as unknown as TensorSummary;

test("the values of a call stand in the order of dump.json, by its names", () => {
  const value = { tensor: tensor({}) };
  const entry = { call: {
    kind: "CALL_KIND_FORWARD",
    inputArgs: { items: [value, { list: { items: [value, { scalar: { type: "int", i: "3" } }] } }] },
    inputKwargs: { items: [{ name: "mask", value: {} }] },
    parameters: { items: [{ name: "weight", value }] },
    output: { items: [{ map: { items: [{ name: "loss", value }] } }] },
  } } as unknown as CallEntry;
  assert.deepEqual(leavesOf(entry).map(({ name, given, text }) => [name, given, text]), [
    ["input.0", true, ""], ["input.1.0", true, ""], ["input.1.1", true, "int 3"], ["input.mask", true, "null"],
    ["parameters.weight", true, ""], ["output.0.loss", false, ""]]);
});

test("what a backward pass is given is its input", () => {
  const entry = { call: { kind: "CALL_KIND_MODULE_BACKWARD", input: { items: [{}] }, output: { items: [{}] } } } as unknown as CallEntry;
  assert.deepEqual(leavesOf(entry).map(({ name, given }) => [name, given]), [["input.0", true], ["output.0", false]]);
});

test("a tensor is bad by its extremes; a norm may overflow", () => {
  assert.equal(isBad(tensor({ maxF: "NaN", minF: 0 })), true);
  assert.equal(isBad(tensor({ maxF: 1, minF: "-Infinity" })), true);
  assert.equal(isBad(tensor({ maxF: 3e38, minF: 1, normF: "Infinity" })), false);
  assert.equal(isBad(undefined), false);
  assert.deepEqual(numbersOf(tensor({ maxI: "7", minB: false })), { max: 7, min: 0, mean: undefined, norm: undefined });
});

test("names", () => {
  assert.equal(callName("Module.layers.0.fc.Linear.forward.0"), "Module.layers.0.fc.Linear");
  assert.equal(callName("Functional.relu.12.backward"), "Functional.relu");
  assert.equal(callName("Module.fc.Linear.parameters_grad.0"), "Module.fc.Linear");
  assert.equal(dtypeName(tensor({})), "torch.float32");
  assert.equal(dtypeName(tensor({}, { dtypeName: "torch.float8_e4m3fn" })), "torch.float8_e4m3fn");
});
