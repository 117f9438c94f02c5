// SPDX-License-Identifier: Apache-2.0
// Types of the services' messages in proto3 JSON: 64-bit integers and
// non-finite numbers are texts. They have the fields that pages read;
// proto/rankprobe/v1 documents each.
export type Int64 = string | number;
export type Double = number | string;

export interface RunInfo {
  run: string;
  createdUnixNs: Int64;
  updatedUnixNs: Int64;
  ranks: Int64;
  steps: Int64;
  records: Int64;
  storedPayloadBytes: Int64;
  offeredPayloadBytes: Int64;
}

export interface Identity {
  run: string;
  rank?: Int64;
  host: string;
  pid: Int64;
}

export interface AgentInfo {
  identity: Identity;
  connected: boolean;
  step: Int64;
  planEpoch: Int64;
  dumping: boolean;
  receivedBytes: Int64;
  lagSteps: Int64;
  silentMs: Int64;
  stepNs: Int64;
  lostRecords: Int64;
  frameworkVersion: string;
  configFault: string;
}

export interface GetConfigResponse {
  epoch: Int64;
  enabled: boolean;
  configJson: string;
  effectiveAtStep: Int64;
  forSteps: Int64;
  source: string;
  configFault: string;
}

export interface RankSwitch {
  rank?: Int64;
  pid: Int64;
  host: string;
  state: string;
  appliedStep: Int64;
  reason: string;
}

export interface SwitchResult {
  epoch: Int64;
  effectiveAtStep: Int64;
  ranks: RankSwitch[];
  summary: string;
  waits: boolean;
}

export interface RankExplanation {
  identity: Identity;
  stages: { stage: string; passes: boolean; reason: string }[];
  calls: { entry: string; captured: boolean; withPayload: boolean; stage: string; reason: string }[];
}

export interface ExplainResponse {
  epoch: Int64;
  ranks: RankExplanation[];
  stages: { stage: string; passes: boolean; reason: string }[];
}

export interface EventInfo {
  id: Int64;
  run: string;
  timeUnixNs: Int64;
  kind: string;
  identity?: Identity;
  step: Int64;
  rule: string;
  entry: string;
  detail: string;
  outcome: string;
}

export interface GridHead {
  firstSteps: Int64[];
  lastSteps: Int64[];
  stepsPerColumn: Int64;
  steps: Int64;
  rankSteps: Int64;
  incompleteRankSteps: Int64;
  deletedRankSteps: Int64;
  tensors: Int64;
  tensorsWithout: Int64;
  rows: Int64;
}

export interface StepLedger {
  step: Int64;
  rank?: Int64;
  pid: Int64;
  host: string;
  state: string;
  expectedRecords?: Int64;
  storedRecords: Int64;
  filteredCalls: Int64;
  gaps: { reason: string; entry: string; records: Int64; payloads: Int64; detail: string }[];
}

export interface TensorStats {
  maxF?: Double;
  maxI?: Int64;
  maxB?: boolean;
  minF?: Double;
  minI?: Int64;
  minB?: boolean;
  meanF?: Double;
  meanI?: Int64;
  normF?: Double;
  normI?: Int64;
}

export interface TensorSummary {
  type: string;
  dtype: string;
  dtypeName: string;
  shape: Int64[];
  stats?: TensorStats;
  payload?: { digest: string; lengthBytes: Int64; lost: string };
}

export interface Value {
  tensor?: TensorSummary;
  scalar?: { type: string; i?: Int64; f?: Double; b?: boolean; s?: string; bigInt?: string };
  object?: { kind: string; text: string; ints: Int64[] };
  list?: { items: Value[] };
  map?: { items: { name: string; value: Value }[] };
  p2p?: { tensor: TensorSummary; op: string; peer: Int64 };
  cut?: { type: string; limit: string };
}

export interface CallEntry {
  entry: string;
  call: {
    entry: string;
    kind: string;
    inputArgs?: { items: Value[] };
    inputKwargs?: { items: { name: string; value: Value }[] };
    output?: { items: Value[] };
    parameters?: { items: { name: string; value: Value }[] };
    input?: { items: Value[] };
    gradients?: { items: { name: string; value: Value }[] };
    debug?: Value;
  };
  stack?: string[];
  parent?: string;
}
