// SPDX-License-Identifier: Apache-2.0
// Graph databases and dumps on the server of this page.
import { call, server, stream } from "../api";
import { runJob } from "../jobs";
import { graphOf, type GraphData, type SideColumns } from "./model";

export interface Listing {
  root: string;
  databases: { path: string; bytes: number; modified: number }[];
  dumps: { path: string; steps: number; ranks: number }[];
  truncated: boolean;
}

export interface GraphAbout {
  compare: boolean;
  // "summary", "md5", "all", "structure"; "" in a build.
  task: string;
  toolTip: Record<string, string> | string | null;
  microSteps: number;
  overflowCheck: boolean;
  steps: number[];
  ranks: number[];
}

// Texts of a database may hold anything, so none of these is certain to be an object.
export interface NodeDetail {
  input: unknown;
  output: unknown;
  merged: unknown;
  links: unknown;
  partner: unknown;
  stack: unknown;
}

export interface PlaceSummary {
  step: number;
  rank: number;
  nodes: number;
  error: number;
  warning: number;
  unmatched: number;
  critical: number;
  overflow: number;
}

export interface JudgedPair {
  precision?: number;
  input?: Record<string, Record<string, string>>;
  output?: Record<string, Record<string, string>>;
  refused?: string;
}

// Source of a graph: a database, or the dumps that one is built from.
export interface GraphSource {
  db?: string;
  target?: string;
  reference?: string;
  overflowCheck?: boolean;
  fuzzy?: boolean;
  layers?: boolean;
}

export const listRoot = (signal?: AbortSignal) => call<Listing>("Graph/List", {}, signal);
export const openGraph = (db: string, signal?: AbortSignal) => call<GraphAbout>("Graph/Open", { db }, signal);
export const loadNode = (db: string, step: number, rank: number, side: string, node: string, signal?: AbortSignal) =>
  call<NodeDetail>("Graph/Node", { db, step, rank, side, node }, signal);

interface Child {
  name: string;
  kind: number;
  precision: number;
  leaf: boolean;
  partner: string;
  overflow: string;
  microStep: number;
}

// Loads only the first levels, down to the first with a choice, which are shown until all nodes are loaded.
async function loadTop(db: string, step: number, rank: number, sides: string[], signal?: AbortSignal): Promise<GraphData> {
  const tops = await Promise.all(sides.map(async (side) => {
    const found: { child: Child; parent: number }[] = [];
    let level = [-1];
    for (let depth = 0; depth < 5 && level.length > 0 && level.length <= 2; ++depth) {
      const next: number[] = [];
      for (const parent of level) {
        const { children } = await call<{ children: Child[] }>("Graph/Children", { db, step, rank, side, node: parent < 0 ? "" : found[parent].child.name }, signal);
        for (const child of children.slice(0, 5000)) {
          if (!child.leaf) next.push(found.length);
          found.push({ child, parent });
        }
      }
      level = next;
    }
    return found;
  }));
  const numbers = tops.map((found) => new Map(found.map(({ child }, i) => [child.name, i])));
  return graphOf(tops.map((found, side): SideColumns => ({
    source: sides[side], names: found.map(({ child }) => child.name), parents: found.map(({ parent }) => parent), kinds: found.map(({ child }) => String(child.kind)).join(""),
    precision: found.map(({ child }) => child.precision), overflow: found.map(({ child }) => child.overflow).join(""), microSteps: found.map(({ child }) => child.microStep),
    flags: "0".repeat(found.length),
    // A partner outside of the first levels is still a partner; its number is not used before all nodes are loaded.
    partners: sides.length < 2 ? undefined : found.map(({ child }) => (child.partner === "" ? -1 : (numbers[1 - side].get(child.partner) ?? 0))),
  })), 0);
}

export async function loadGraph(db: string, step: number, rank: number, compare: boolean, signal: AbortSignal, partial: (graph: GraphData) => void): Promise<GraphData> {
  let whole = false;
  const top = loadTop(db, step, rank, compare ? ["NPU", "Bench"] : ["NPU"], signal).then(
    (graph) => !whole && graph.sides.every((side) => side.names.length > 0) && partial(graph), () => undefined);
  // The few rows of the first levels are requested before all rows.
  await Promise.race([top, new Promise((done) => setTimeout(done, 150))]);
  const { sides, faults } = await call<{ sides: SideColumns[]; faults: number }>("Graph/Graph", { db, step, rank }, signal);
  whole = true;
  return graphOf(sides, faults);
}

export async function summarize(db: string, signal?: AbortSignal): Promise<PlaceSummary[]> {
  const { places } = await call<{ places: number[][] }>("Graph/Summary", { db }, signal);
  return places.map(([step, rank, nodes, error, warning, unmatched, critical, overflow]) => ({ step, rank, nodes, error, warning, unmatched, critical, overflow }));
}

export async function judge(db: string, step: number, rank: number, pairs: [string, string][]): Promise<JudgedPair[]> {
  return (await call<{ results: JudgedPair[] }>("Graph/Match", { db, step, rank, pairs })).results;
}

export async function loadMapping(path: string, signal?: AbortSignal): Promise<[string, string][]> {
  return (await call<{ pairs: [string, string][] }>("Graph/LoadMapping", { path }, signal)).pairs;
}

export async function saveMapping(db: string, step: number, rank: number, pairs: [string, string][]): Promise<string> {
  return (await call<{ path: string }>("Graph/SaveMapping", { db, step, rank, pairs })).path;
}

// Returns the name of a dump in a job: "run:a@3", or a dump below the root.
export function dumpOf(name: string): string {
  return name.startsWith("run:") ? name : `root:${name === "." ? "" : name}`;
}

// Builds a graph by a command of rankprobe on the server; its database is kept for a while.
async function buildByJob(source: GraphSource, again: boolean, onProgress: (done: number, all: number) => void, signal: AbortSignal): Promise<{ db: string; warnings: string[] }> {
  const options: Record<string, string> = { target_path: dumpOf(source.target ?? "") };
  if (source.reference) options.golden_path = dumpOf(source.reference);
  if (source.overflowCheck) options.overflow_check = "true";
  if (source.fuzzy) options.fuzzy_match = "true";
  if (source.layers) options.layer_mapping = "true";
  const job = await runJob({ command: "graph_visualize", options, reuse: !again }, signal, (seen) => seen.percent >= 0 && onProgress(seen.percent, 100));
  const file = job.files.find((one) => one.name.endsWith(".vis.db"));
  if (file === undefined) throw new Error(job.messages || "the job made no graph");
  return { db: `job:${job.id}/${file.name}`, warnings: job.messages === "" ? [] : [job.messages] };
}

export async function buildGraph(source: GraphSource, again: boolean, onProgress: (done: number, all: number) => void,
                                 signal: AbortSignal): Promise<{ db: string; warnings: string[] }> {
  if (server.value?.builds === false) return buildByJob(source, again, onProgress, signal);
  let built: { db: string; warnings: string[] } | undefined;
  const body = { target: source.target ?? "", reference: source.reference ?? "", overflowCheck: source.overflowCheck ?? false,
    fuzzy: source.fuzzy ?? false, layers: source.layers ?? false, again };
  for await (const line of stream<{ done?: number; all?: number; db?: string; warnings?: string[] }>("Graph/Build", body, signal)) {
    if (line.db !== undefined) built = { db: line.db, warnings: line.warnings ?? [] };
    else onProgress(line.done ?? 0, line.all ?? 0);
  }
  if (built === undefined) throw new Error("the graph was not finished: has rankprobe view ended?");
  return built;
}

// Returns the entries of {"row": {"key": "text"}} and skips everything else.
export function rowsOf(value: unknown): [string, Record<string, string>][] {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [];
  return Object.entries(value).map(([name, fields]) => {
    const out: Record<string, string> = Object.create(null);
    if (typeof fields === "object" && fields !== null) {
      for (const [key, text] of Object.entries(fields)) out[key] = typeof text === "string" ? text : JSON.stringify(text);
    } else {
      out.value = String(fields);
    }
    return [name, out];
  });
}

export function textsOf(value: unknown): string[] {
  if (typeof value === "string") return value === "" ? [] : [value];
  return Array.isArray(value) ? value.map((item) => (typeof item === "string" ? item : JSON.stringify(item))) : [];
}

export interface CommLink {
  // "send", "receive" or "link".
  kind: string;
  peers: { rank: number; node: string; mark: string }[];
}

// Parses {"communications_type", "nodes_info": {"1": ["0", "Distributed.recv.0.forward"]}}, or a list of such objects.
export function commLinksOf(value: unknown): CommLink[] {
  const out: CommLink[] = [];
  for (const one of Array.isArray(value) ? value : [value]) {
    if (typeof one !== "object" || one === null) continue;
    const { communications_type: kind, nodes_info: info } = one as Record<string, unknown>;
    if (typeof info !== "object" || info === null) continue;
    const peers = Object.entries(info).flatMap(([rank, peer]) =>
      Array.isArray(peer) && peer.length === 2 && /^\d+$/.test(rank) ? [{ rank: Number(rank), mark: String(peer[0]), node: String(peer[1]) }] : []);
    if (peers.length > 0) out.push({ kind: typeof kind === "string" ? kind : "", peers });
  }
  return out;
}
