// SPDX-License-Identifier: Apache-2.0
// The calls of a step below the modules they were made in, with what is bad counted
// up to every module.
import { isBad, leavesOf, numbersOf, shapeText } from "./calls";
import { number } from "./format";
import type { CallEntry } from "./messages";

export interface Node {
  name: string;
  // Absent: a module around calls, that was not recorded itself.
  entry?: CallEntry;
  parent?: Node;
  children: Node[];
  // Calls below and itself, and those of them that made a NaN or an infinity.
  calls: number;
  bad: number;
  itselfBad: boolean;
  depth: number;
}

export interface Tree {
  roots: Node[];
  nodes: Map<string, Node>;
}

export function treeOf(entries: CallEntry[]): Tree {
  const nodes = new Map<string, Node>();
  const node = (name: string): Node => {
    let found = nodes.get(name);
    if (found === undefined) {
      found = { name, children: [], calls: 0, bad: 0, itselfBad: false, depth: 0 };
      nodes.set(name, found);
    }
    return found;
  };
  for (const entry of entries) {
    const one = node(entry.entry);
    one.entry = entry;
    one.itselfBad = leavesOf(entry).some((leaf) => !leaf.given && isBad(leaf.tensor));
  }
  for (const entry of entries) {
    if (entry.parent === undefined || entry.parent === entry.entry) continue;
    const one = node(entry.entry);
    const parent = node(entry.parent);
    // Records may say anything: what would be its own ancestor stays where it is.
    let above: Node | undefined = parent;
    while (above !== undefined && above !== one) above = above.parent;
    if (above === undefined) one.parent = parent;
  }
  const roots: Node[] = [];
  for (const one of nodes.values()) (one.parent?.children ?? roots).push(one);
  // From the leaves up, without recursion: a chain may be as long as a step.
  const order: Node[] = [];
  const waiting = [...roots];
  while (waiting.length > 0) {
    const one = waiting.pop()!;
    order.push(one);
    for (const child of one.children) {
      child.depth = one.depth + 1;
      waiting.push(child);
    }
  }
  for (const one of order.reverse()) {
    one.calls += one.entry === undefined ? 0 : 1;
    one.bad += one.itselfBad ? 1 : 0;
    if (one.parent !== undefined) {
      one.parent.calls += one.calls;
      one.parent.bad += one.bad;
    }
  }
  return { roots, nodes };
}

// Those in sight, from the top.
export function visible(tree: Tree, open: Set<string>): Node[] {
  const out: Node[] = [];
  const waiting = [...tree.roots].reverse();
  while (waiting.length > 0) {
    const one = waiting.pop()!;
    out.push(one);
    if (open.has(one.name)) for (let i = one.children.length - 1; i >= 0; --i) waiting.push(one.children[i]);
  }
  return out;
}

// The first in the order of execution that is bad itself, below `one` or anywhere.
export function firstBadNode(tree: Tree, one?: Node): Node | undefined {
  for (const candidate of tree.nodes.values()) {
    if (!candidate.itselfBad) continue;
    let above: Node | undefined = candidate;
    while (above !== undefined && above !== one) above = above.parent;
    if (one === undefined || above === one) return candidate;
  }
  return undefined;
}

// "[4, 16] norm 2.24" of the first tensor it made.
export function summaryOf(entry: CallEntry): string {
  const leaf = leavesOf(entry).find((one) => !one.given && one.tensor !== undefined);
  if (leaf?.tensor === undefined) return "";
  const { norm } = numbersOf(leaf.tensor);
  return `${shapeText(leaf.tensor)}${norm === undefined ? "" : ` ${number(norm)}`}`;
}
