// SPDX-License-Identifier: Apache-2.0
// A graph as columns: nodes by number, with the faults summed up to every parent. It is built without recursion,
// because a chain may be as long as a database has rows.

// One side in the answer of `POST /api/v1/Graph/Graph`.
export interface SideColumns {
  source: string;
  names: string[];
  parents: number[];
  // One letter for each node: "0" for a module, "1" for a call, "9" for a collection of calls.
  kinds: string;
  // From 0 to 1; -1 if not compared.
  precision: number[];
  // Overflow level: ".", "m", "h" or "c".
  overflow: string;
  microSteps: number[];
  // Digits with these bits: 1 merged from ranks, 2 communicates, 4 matched by hand.
  flags: string;
  partners?: number[];
}

export const MERGED = 1;
export const COMMUNICATES = 2;
export const BY_HAND = 4;

export type Colouring = "precision" | "overflow";
export type Status = "none" | "pass" | "warning" | "error" | "unmatched" | "medium" | "high" | "critical";
export const WRONG: Record<Colouring, Status[]> = { precision: ["error", "warning", "unmatched"], overflow: ["critical", "high", "medium"] };
// A column stores the index of a status in this list.
const ORDER: Status[] = ["none", "pass", "warning", "error", "unmatched", "medium", "high", "critical"];

export interface Side {
  source: string;
  names: string[];
  parents: Int32Array;
  // The children of node i are list[first[i]] to list[first[i + 1]] (exclusive), in order.
  first: Int32Array;
  list: Int32Array;
  roots: Int32Array;
  depth: Int32Array;
  kinds: string;
  precision: Float32Array;
  overflow: string;
  microSteps: Int32Array;
  flags: Uint8Array;
  // Partners on the other side; -1 if a node has none. Absent if there is no other side.
  partners?: Int32Array;
  // Leaves below a node (itself if it is a leaf), and their number by status.
  leaves: Int32Array;
  counts: Map<Status, Int32Array>;
  numbers: Map<string, number>;
  // Names in lower case, for the search.
  lower?: string[];
}

export interface GraphData {
  sides: Side[];
  faults: number;
}

export function isLeaf(side: Side, node: number): boolean {
  return side.first[node] === side.first[node + 1];
}

export function childrenOf(side: Side, node: number): Int32Array {
  return side.list.subarray(side.first[node], side.first[node + 1]);
}

export function statusOf(side: Side, node: number, colouring: Colouring): Status {
  if (colouring === "overflow") {
    const level = side.overflow[node];
    return level === "c" ? "critical" : level === "h" ? "high" : level === "m" ? "medium" : "none";
  }
  if (side.partners === undefined) return "none";
  if (side.partners[node] < 0) return "unmatched";
  const value = side.precision[node];
  return value < 0 ? "none" : value < 0.3 ? "pass" : value < 0.6 ? "warning" : "error";
}

function count(side: Side): void {
  const total = side.names.length;
  side.leaves = new Int32Array(total);
  side.counts = new Map();
  for (const colouring of ["precision", "overflow"] as Colouring[]) {
    for (const status of WRONG[colouring]) side.counts.set(status, new Int32Array(total));
  }
  // Parents before children, reversed.
  const order = new Int32Array(total);
  let filled = 0;
  for (const root of side.roots) order[filled++] = root;
  for (let i = 0; i < filled; ++i) for (const child of childrenOf(side, order[i])) order[filled++] = child;
  for (let i = filled - 1; i >= 0; --i) {
    const node = order[i];
    if (isLeaf(side, node)) {
      side.leaves[node] = 1;
      for (const colouring of ["precision", "overflow"] as Colouring[]) {
        side.counts.get(statusOf(side, node, colouring))?.fill(1, node, node + 1);
      }
    }
    const up = side.parents[node];
    if (up < 0) continue;
    side.leaves[up] += side.leaves[node];
    for (const column of side.counts.values()) column[up] += column[node];
  }
  for (let i = 0; i < filled; ++i) side.depth[order[i]] = side.parents[order[i]] < 0 ? 0 : side.depth[side.parents[order[i]]] + 1;
}

export function sideOf(columns: SideColumns): Side {
  const total = columns.names.length;
  const parents = Int32Array.from(columns.parents);
  const first = new Int32Array(total + 1);
  let roots = 0;
  for (let i = 0; i < total; ++i) {
    if (parents[i] < 0) ++roots;
    else ++first[parents[i] + 1];
  }
  for (let i = 0; i < total; ++i) first[i + 1] += first[i];
  const list = new Int32Array(total - roots);
  const tops = new Int32Array(roots);
  const next = first.slice();
  let top = 0;
  for (let i = 0; i < total; ++i) {
    if (parents[i] < 0) tops[top++] = i;
    else list[next[parents[i]]++] = i;
  }
  const numbers = new Map<string, number>();
  for (let i = total - 1; i >= 0; --i) numbers.set(columns.names[i], i);
  const flags = new Uint8Array(total);
  for (let i = 0; i < total; ++i) flags[i] = columns.flags.charCodeAt(i) - 48;
  const side: Side = {
    source: columns.source, names: columns.names, parents, first, list, roots: tops, depth: new Int32Array(total), kinds: columns.kinds,
    precision: Float32Array.from(columns.precision), overflow: columns.overflow, microSteps: Int32Array.from(columns.microSteps), flags,
    partners: columns.partners && Int32Array.from(columns.partners), leaves: new Int32Array(0), counts: new Map(), numbers,
  };
  count(side);
  return side;
}

export function graphOf(sides: SideColumns[], faults: number): GraphData {
  return { sides: sides.map(sideOf), faults };
}

// Returns a copy of a graph of two sides in which pairs were matched or separated by hand.
export function withPairs(graph: GraphData, pairs: { target: number; reference: number; precision: number }[], apart: [number, number][]): GraphData {
  if (pairs.length === 0 && apart.length === 0) return graph;
  const sides = graph.sides.map((side): Side => ({ ...side, partners: side.partners!.slice(), precision: side.precision.slice(), flags: side.flags.slice() }));
  const [target, reference] = sides;
  for (const [a, b] of apart) {
    target.partners![a] = reference.partners![b] = -1;
    target.precision[a] = -1;
    target.flags[a] |= BY_HAND;
    reference.flags[b] |= BY_HAND;
  }
  for (const pair of pairs) {
    target.partners![pair.target] = pair.reference;
    reference.partners![pair.reference] = pair.target;
    target.precision[pair.target] = pair.precision;
    target.flags[pair.target] |= BY_HAND;
    reference.flags[pair.reference] |= BY_HAND;
  }
  for (const side of sides) count(side);
  return { sides, faults: graph.faults };
}

export function ancestorsOf(side: Side, node: number): number[] {
  const out: number[] = [];
  for (let up = side.parents[node]; up >= 0; up = side.parents[up]) out.push(up);
  return out;
}

// Returns the nodes whose names contain the text, ignoring case, in the order of collection.
export function search(side: Side, text: string): number[] {
  const wanted = text.toLowerCase();
  if (wanted === "") return [];
  side.lower ??= side.names.map((name) => name.toLowerCase());
  const out: number[] = [];
  for (let i = 0; i < side.lower.length; ++i) if (side.lower[i].includes(wanted)) out.push(i);
  return out;
}

// Returns the leaves with a status, in the order of collection.
export function leavesWith(side: Side, status: Status, microStep: number): number[] {
  const colouring: Colouring = ORDER.indexOf(status) >= ORDER.indexOf("medium") ? "overflow" : "precision";
  const out: number[] = [];
  for (let i = 0; i < side.names.length; ++i) {
    if (!isLeaf(side, i) || statusOf(side, i, colouring) !== status) continue;
    if (microStep < 0 || side.microSteps[i] === microStep) out.push(i);
  }
  return out;
}

// Returns the first bad leaf in the order of collection: below `node`, or anywhere for -1. Undefined if there is none.
export function firstBad(side: Side, node: number, colouring: Colouring): number | undefined {
  for (const status of WRONG[colouring]) {
    const counts = side.counts.get(status)!;
    const tops = node < 0 ? side.roots : [node];
    for (const top of tops) {
      if (counts[top] === 0) continue;
      let at = top;
      // Descends into the first child that contains one.
      while (!isLeaf(side, at)) at = childrenOf(side, at).find((child) => counts[child] > 0)!;
      return at;
    }
  }
  return undefined;
}

// Returns "fc.Linear.forward.0" in "Module.layers.0.Layer.forward.0": the part of the name that its parent does not
// have.
export function shortName(side: Side, node: number): string {
  const name = side.names[node];
  const up = side.parents[node];
  if (up < 0) return name;
  const above = side.names[up];
  let same = 0;
  while (same < name.length && same < above.length && name[same] === above[same]) ++same;
  const dot = name.lastIndexOf(".", same);
  return dot > 6 && name.startsWith("Module.") ? name.slice(dot + 1) : name;
}
