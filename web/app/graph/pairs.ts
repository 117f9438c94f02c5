// SPDX-License-Identifier: Apache-2.0
// Nodes that the user matched or unmatched, and possible reasons why a node has
// no partner.
import { childrenOf, isLeaf, type GraphData, type Side } from "./model";

export interface HandPairs {
  // Names, the target's name first.
  matched: [string, string][];
  apart: [string, string][];
}

export const NO_PAIRS: HandPairs = { matched: [], apart: [] };

function twinOf(name: string): string | undefined {
  if (name.includes(".forward")) return name.replace(".forward", ".backward");
  return name.includes(".backward") ? name.replace(".backward", ".forward") : undefined;
}

// Returns the part of a name that two calls with different numbers share: for a module its class ("Linear.forward"),
// for a call its operator ("Torch.mul.forward").
function kindOf(side: Side, node: number): string {
  const parts = side.names[node].split(".").filter((part) => !/^\d+$/.test(part) && !/^rank\d+$/.test(part));
  return parts[0] === "Module" ? parts.slice(-2).join(".") : parts.join(".").replace(/_rank\d+/, "");
}

const isFree = (side: Side, node: number | undefined): node is number => node !== undefined && side.partners![node] < 0;

// Returns the pair, its forward or backward twins and, with `children`, the similar nodes below them in order, as far
// as they have no partner.
export function pairsFor(graph: GraphData, target: number, reference: number, children: boolean): [string, string][] {
  const [ours, theirs] = graph.sides;
  const out: [string, string][] = [];
  const waiting: [number, number][] = [[target, reference]];
  const twins = [ours.names[target], theirs.names[reference]].map(twinOf);
  if (twins[0] !== undefined && twins[1] !== undefined) {
    const [a, b] = [ours.numbers.get(twins[0]), theirs.numbers.get(twins[1])];
    if (isFree(ours, a) && isFree(theirs, b)) waiting.push([a, b]);
  }
  while (waiting.length > 0) {
    const [a, b] = waiting.pop()!;
    out.push([ours.names[a], theirs.names[b]]);
    if (!children) continue;
    const free = new Map<string, number[]>();
    for (const child of childrenOf(theirs, b)) {
      if (!isFree(theirs, child)) continue;
      const kind = kindOf(theirs, child);
      free.set(kind, [...(free.get(kind) ?? []), child]);
    }
    for (const child of childrenOf(ours, a)) {
      if (!isFree(ours, child)) continue;
      const partner = free.get(kindOf(ours, child))?.shift();
      if (partner !== undefined && ours.kinds[child] === theirs.kinds[partner]) waiting.push([child, partner]);
    }
  }
  return out;
}

export function addPairs(pairs: HandPairs, fresh: [string, string][]): HandPairs {
  const known = new Set(fresh.map(([a, b]) => `${a}\n${b}`));
  return { matched: [...pairs.matched.filter(([a, b]) => !known.has(`${a}\n${b}`)), ...fresh], apart: pairs.apart.filter(([a, b]) => !known.has(`${a}\n${b}`)) };
}

// Removes a pair made by hand; separates a pair of the database.
export function takeApart(pairs: HandPairs, graph: GraphData, target: number): HandPairs {
  const [ours, theirs] = graph.sides;
  const reference = ours.partners![target];
  if (reference < 0) return pairs;
  const names: [string, string] = [ours.names[target], theirs.names[reference]];
  const made = pairs.matched.filter(([a, b]) => a !== names[0] || b !== names[1]);
  return made.length < pairs.matched.length ? { ...pairs, matched: made } : { ...pairs, apart: [...pairs.apart, names] };
}

export interface Reason {
  text: string;
  values: string[];
  // Possible partners on the other side.
  candidates: number[];
}

const MOST_CANDIDATES = 5;

// Returns why a node of `side` (0 or 1) has no partner, as far as the two trees show it.
export function whyAlone(graph: GraphData, side: number, node: number): Reason {
  const own = graph.sides[side];
  const other = graph.sides[1 - side];
  const name = own.names[node];
  const up = own.parents[node];
  const same = other.numbers.get(name);
  if (same !== undefined && other.partners![same] < 0) {
    const elsewhere = other.parents[same] < 0 ? "–" : other.names[other.parents[same]];
    if (up >= 0 && elsewhere !== own.names[up]) {
      return { text: "The other side has a node of this name, in {0} and not in {1}.", values: [elsewhere, own.names[up]], candidates: [same] };
    }
    return { text: "The other side has a node of this name that was not matched either.", values: [], candidates: [same] };
  }
  const above = up < 0 ? -1 : own.partners![up];
  if (up >= 0 && above < 0) {
    return { text: "Nothing in {0} is matched: it has no partner itself.", values: [own.names[up]], candidates: [] };
  }
  const within = above < 0 ? [...other.roots] : [...childrenOf(other, above)];
  const kind = kindOf(own, node);
  const alike = within.filter((one) => kindOf(other, one) === kind && other.kinds[one] === own.kinds[node]);
  const free = alike.filter((one) => other.partners![one] < 0).slice(0, MOST_CANDIDATES);
  if (free.length > 0) return { text: "No node of the other side has this name. These are of the same kind and have no partner:", values: [], candidates: free };
  if (alike.length > 0) {
    return { text: "The other side has {0} of this kind there, and all of them have partners: this side has one more.", values: [String(alike.length)], candidates: [] };
  }
  const lone = within.filter((one) => other.partners![one] < 0 && isLeaf(other, one) === isLeaf(own, node)).slice(0, MOST_CANDIDATES);
  if (lone.length > 0) return { text: "No node of the other side has this name. These have no partner in the same place:", values: [], candidates: lone };
  return { text: "The other side has no node of this kind there.", values: [], candidates: [] };
}
