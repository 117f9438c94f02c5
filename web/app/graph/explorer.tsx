// SPDX-License-Identifier: Apache-2.0
// Interactive view of a graph: one side or two side by side, expanded together,
// and a list of the search results. The selection is part of the address.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count } from "../format";
import { Select, TextField } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { route, setQuery } from "../route";
import { t } from "../text";
import { GraphMenu, type MenuEntry } from "./menu";
import { ancestorsOf, childrenOf, firstBad, isLeaf, leavesWith, search, statusOf, WRONG, type Colouring, type GraphData, type Side, type Status } from "./model";
import { Pane } from "./pane";
import type { GraphView } from "./view";

interface Found {
  side: number;
  node: number;
}

export interface Chosen {
  side: number;
  node: number;
}

interface Props {
  graph: GraphData;
  titles: string[];
  colourings: Colouring[];
  microSteps: number;
  // Content before the search field.
  place: ComponentChildren;
  // Content below the boxes.
  details: (chosen: Chosen | undefined, choose: (side: number, node: number) => void) => ComponentChildren;
  menu?: (side: number, node: number) => MenuEntry[];
  // Called for a click while a node of the other side is being selected; returns true if it used the click.
  onPick?: (side: number, node: number) => boolean;
  file: string;
  // If false, more of the graph is still being loaded, and missing nodes are not reported.
  whole?: boolean;
}

const MOST_OPENED = 200_000;

function firstOpen(side: Side): Uint8Array {
  const open = new Uint8Array(side.names.length);
  let level: ArrayLike<number> = side.roots;
  // Opens levels down to the first one with a choice.
  for (let depth = 0; depth < 4 && level.length > 0 && level.length <= 2; ++depth) {
    const next: number[] = [];
    for (let i = 0; i < level.length; ++i) {
      open[level[i]] = 1;
      next.push(...childrenOf(side, level[i]).subarray(0, 1000));
    }
    level = next;
  }
  return open;
}

const LABELS: Record<Status, string> = { none: "not compared", pass: "pass", warning: "warning", error: "error", unmatched: "no partner", medium: "medium overflow", high: "high overflow", critical: "critical overflow" };

export function Explorer(props: Props) {
  const { graph, titles, colourings } = props;
  const { query } = route.value;
  const find = query.find ?? "";
  const filter = (query.filter ?? "") as Status | "";
  const microStep = /^\d+$/.test(query.micro ?? "") ? Number(query.micro) : -1;
  const colouring: Colouring = colourings.includes(query.colour as Colouring) ? (query.colour as Colouring) : colourings[0];
  const together = query.sync !== "0";
  const small = query.mini !== "0";
  const chosenSide = query.side === "b" && graph.sides.length > 1 ? 1 : 0;
  const chosenNode = query.node === undefined ? -1 : (graph.sides[chosenSide].numbers.get(query.node) ?? -1);
  const [opened, redraw] = useState(0);
  const [menu, setMenu] = useState<{ side: number; node: number; x: number; y: number } | undefined>();
  const [help, setHelp] = useState(false);
  const views = useRef<(GraphView | undefined)[]>([]);
  const known = useRef<{ names: string[][]; open: Uint8Array[] }>({ names: [], open: [] });

  // Open nodes stay open in the graph of another rank or step; they are matched by name.
  const open = useMemo(() => {
    const before = known.current;
    const after = graph.sides.map((side, i) => {
      if (before.names[i] === side.names) return before.open[i];
      const fresh = firstOpen(side);
      before.open[i]?.forEach((is, node) => {
        const now = is === 1 ? side.numbers.get(before.names[i][node]) : undefined;
        if (now !== undefined) fresh[now] = 1;
      });
      return fresh;
    });
    known.current = { names: graph.sides.map((side) => side.names), open: after };
    return after;
  }, [graph]);

  const found = useMemo((): Found[] => {
    const out: Found[] = [];
    graph.sides.forEach((side, i) => {
      const nodes = filter !== "" ? leavesWith(side, filter, microStep) : search(side, find);
      // Of pairs that differ, one node is listed; nodes without a partner are listed on both sides.
      if (filter !== "" && filter !== "unmatched" && i > 0) return;
      const wanted = filter !== "" && find !== "" ? new Set(search(side, find)) : undefined;
      for (const node of nodes) if (wanted === undefined || wanted.has(node)) out.push({ side: i, node });
    });
    return out;
  }, [graph, find, filter, microStep]);
  const marked = useMemo(() => graph.sides.map((_, i) => new Set(found.filter((one) => one.side === i).map((one) => one.node))), [found]);

  // Opens all ancestors; returns whether one of them was closed.
  const openAbove = (side: number, node: number): boolean => {
    const closed = ancestorsOf(graph.sides[side], node).filter((up) => open[side][up] === 0);
    for (const up of closed) open[side][up] = 1;
    return closed.length > 0;
  };
  const refresh = () => redraw((n) => n + 1);
  const choose = (side: number, node: number) => {
    if (props.onPick?.(side, node)) return;
    setQuery({ node: graph.sides[side].names[node], side: side === 1 ? "b" : undefined });
  };
  const toggle = (side: number, node: number, to?: boolean) => {
    const value = to ?? open[side][node] === 0 ? 1 : 0;
    open[side][node] = value;
    const view = views.current[side];
    if (view) view.anchor = node;
    const partner = graph.sides[side].partners?.[node] ?? -1;
    if (together && partner >= 0) {
      open[1 - side][partner] = value;
      openAbove(1 - side, partner);
      const other = views.current[1 - side];
      if (other) other.anchor = partner;
    }
    refresh();
  };
  const openBelow = (side: number, node: number, value: 0 | 1) => {
    let opened = 0;
    const waiting = node < 0 ? [...graph.sides[side].roots] : [node];
    while (waiting.length > 0 && opened < MOST_OPENED) {
      const at = waiting.pop()!;
      if (isLeaf(graph.sides[side], at)) continue;
      ++opened;
      open[side][at] = value;
      for (const child of childrenOf(graph.sides[side], at)) waiting.push(child);
    }
    refresh();
  };

  // Scrolls the node in the address into view on both sides, at the same height.
  useEffect(() => {
    if (chosenNode < 0) return;
    const partner = graph.sides[chosenSide].partners?.[chosenNode] ?? -1;
    const here = openAbove(chosenSide, chosenNode);
    const there = partner >= 0 && openAbove(1 - chosenSide, partner);
    if (here || there) refresh();
    const timer = requestAnimationFrame(() => {
      views.current[chosenSide]?.reveal(chosenNode);
      if (partner >= 0) views.current[1 - chosenSide]?.reveal(partner, together ? views.current[chosenSide]?.screenY(chosenNode) : undefined);
    });
    return () => cancelAnimationFrame(timer);
  }, [graph, chosenSide, chosenNode]);

  const step = (by: number) => {
    if (found.length === 0) return;
    const at = found.findIndex((one) => one.side === chosenSide && one.node === chosenNode);
    const next = found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length];
    setQuery({ node: graph.sides[next.side].names[next.node], side: next.side === 1 ? "b" : undefined });
  };
  const toFirstBad = (side: number, node: number) => {
    const bad = firstBad(graph.sides[side], node, colouring);
    if (bad !== undefined) choose(side, bad);
  };
  const onKey = (side: number, key: string): boolean => {
    const partner = chosenNode < 0 ? -1 : (graph.sides[chosenSide].partners?.[chosenNode] ?? -1);
    switch (key) {
      case "n": case "N": step(1); return true;
      case "p": case "P": step(-1); return true;
      case "b": case "B": toFirstBad(side, -1); return true;
      case "m": case "M": if (partner >= 0) choose(1 - chosenSide, partner); return true;
      case "?": setHelp(!help); return true;
      case "Escape": setMenu(undefined); setQuery({ node: undefined, side: undefined }); return true;
    }
    return false;
  };
  const onMoved = (side: number, view: GraphView) => {
    const { partners } = graph.sides[side];
    if (together && partners !== undefined) views.current[1 - side]?.follow(view, partners);
  };

  const counts = useMemo(() => {
    const side = graph.sides[0];
    const sum = (column: Int32Array) => side.roots.reduce((all, root) => all + column[root], 0);
    const wrong = WRONG[colouring].map((status): [Status, number] => [status, sum(side.counts.get(status)!)]);
    if (colouring === "overflow") return wrong;
    const rest = leavesWith(side, "pass", -1).length;
    return side.partners === undefined ? [] : [...wrong, ["pass", rest] as [Status, number]];
  }, [graph, colouring]);
  const menuEntries = (side: number, node: number): MenuEntry[] => {
    const own = graph.sides[side];
    const partner = own.partners?.[node] ?? -1;
    const entries: MenuEntry[] = [];
    if (!isLeaf(own, node)) {
      entries.push([open[side][node] ? t("Close") : t("Open"), () => toggle(side, node)]);
      entries.push([t("Open all in it"), () => openBelow(side, node, 1)]);
      entries.push([t("Close all in it"), () => openBelow(side, node, 0)]);
      if (firstBad(own, node, colouring) !== undefined) entries.push([t("First bad call in it"), () => toFirstBad(side, node)]);
    }
    if (partner >= 0) entries.push([t("Go to its partner"), () => choose(1 - side, partner)]);
    return [...entries, ...(props.menu?.(side, node) ?? [])];
  };
  const columns: Column<Found>[] = [
    { name: t("Name"), text: (one) => graph.sides[one.side].names[one.node],
      show: (one) => <><i class="dot" data-status={statusOf(graph.sides[one.side], one.node, colouring)} />{graph.sides[one.side].names[one.node]}</> },
    { name: t("In"), text: (one) => { const up = graph.sides[one.side].parents[one.node]; return up < 0 ? "" : graph.sides[one.side].names[up]; } },
    { name: t("Result"), text: (one) => t(LABELS[statusOf(graph.sides[one.side], one.node, colouring)]) },
    { name: t("Side"), text: (one) => titles[one.side] },
  ];
  const bad = firstBad(graph.sides[0], -1, colouring);
  const badIn = chosenNode >= 0 && !isLeaf(graph.sides[chosenSide], chosenNode) ? firstBad(graph.sides[chosenSide], chosenNode, colouring) : undefined;
  const listed = find !== "" || filter !== "";
  return (
    <div class="graph">
      <div class="form">
        {props.place}
        {props.microSteps > 1 && (
          <Select label={t("Micro step")} value={String(microStep)} onChange={(value) => setQuery({ micro: value === "-1" ? undefined : value })}
            of={[["-1", t("all")], ...Array.from({ length: Math.min(props.microSteps, 1000) }, (_, i): [string, string] => [String(i), String(i)])]} />
        )}
        {colourings.length > 1 && (
          <Select label={t("Colours")} value={colouring} onChange={(value) => setQuery({ colour: value === colourings[0] ? undefined : value, filter: undefined })}
            of={colourings.map((one): [string, string] => [one, one === "precision" ? t("precision") : t("overflow")])} />
        )}
        <TextField label={t("Search")} value={find} wide onChange={(text) => setQuery({ find: text })} />
      </div>
      <div class="graph-bar" role="toolbar" aria-label={t("Graph")}>
        {counts.map(([status, number]) => (
          <button key={status} class="chip" aria-pressed={filter === status} disabled={number === 0 && filter !== status}
            onClick={() => setQuery({ filter: filter === status ? undefined : status })}>
            <i class="dot" data-status={status} /> {t(LABELS[status])} {count(number)}
          </button>
        ))}
        {bad !== undefined && <button class="primary" onClick={() => toFirstBad(0, -1)}>{t("First bad call")}</button>}
        {badIn !== undefined && <button onClick={() => toFirstBad(chosenSide, chosenNode)}>{t("First bad call in it")}</button>}
        {listed && (
          <span role="status">
            {found.length === 0 ? t("no node of this name or kind") : t("{0} found", count(found.length))}{" "}
            <button onClick={() => step(-1)} disabled={found.length === 0}>{t("Previous")}</button>{" "}
            <button onClick={() => step(1)} disabled={found.length === 0}>{t("Next")}</button>
          </span>
        )}
        {props.whole === false && <span class="note" aria-busy="true">{t("Loading …")}</span>}
        <span class="grow" />
        <button onClick={() => graph.sides.forEach((_, i) => openBelow(i, -1, 1))}>{t("Open all")}</button>
        <button onClick={() => { graph.sides.forEach((side, i) => { open[i].fill(0); open[i].set(firstOpen(side)); }); refresh(); }}>{t("Close all")}</button>
        <button aria-label={t("Smaller")} onClick={() => views.current.forEach((view) => view?.zoomBy(0.8))}>−</button>
        <button aria-label={t("Larger")} onClick={() => views.current.forEach((view) => view?.zoomBy(1.25))}>+</button>
        <button onClick={() => views.current.forEach((view) => view?.fit())}>{t("Fit")}</button>
        <label class="check"><input type="checkbox" checked={small} onChange={() => setQuery({ mini: small ? "0" : undefined }, true)} /> {t("Thumbnails")}</label>
        {graph.sides.length > 1 && <label class="check"><input type="checkbox" checked={together} onChange={() => setQuery({ sync: together ? "0" : undefined }, true)} /> {t("Both sides together")}</label>}
        <button aria-expanded={help} onClick={() => setHelp(!help)}>{t("Keys")}</button>
      </div>
      {help && <Keys />}
      {query.node !== undefined && chosenNode < 0 && props.whole !== false && <p class="failure" role="alert">{t("There is no node {0} here.", query.node)}</p>}
      {graph.faults > 0 && <p class="failure">{t("Shown at the top: {0} nodes whose parent or partner does not exist, that form a cycle, or have a duplicate name.", count(graph.faults))}</p>}
      <div class={`graph-body${listed ? " listed" : ""}`}>
        {listed && (
          <div class="graph-list">
            <Table rows={found} columns={columns} file={`${props.file}_found.csv`} label={t("Found nodes")} heightPx={520}
              rowKey={(one) => `${one.side} ${one.node}`} rowClass={(one) => (one.side === chosenSide && one.node === chosenNode ? "chosen" : "")}
              onOpen={(one) => choose(one.side, one.node)} />
          </div>
        )}
        {graph.sides.map((side, i) => (
          <Pane key={side.source} index={i} side={side} open={open[i]} opened={opened} title={titles[i]} microStep={microStep} colouring={colouring}
            selected={chosenSide === i ? chosenNode : chosenNode >= 0 ? (graph.sides[chosenSide].partners?.[chosenNode] ?? -1) : -1} marked={marked[i]} small={small}
            onView={(view) => (views.current[i] = view)} onSelect={(node) => choose(i, node)} onToggle={(node, to) => toggle(i, node, to)}
            onMenu={(node, x, y) => setMenu({ side: i, node, x, y })} onKey={(key) => onKey(i, key)} onMoved={(view) => onMoved(i, view)} />
        ))}
      </div>
      {menu && <GraphMenu x={menu.x} y={menu.y} entries={menuEntries(menu.side, menu.node)} onClose={() => { setMenu(undefined); views.current[menu.side]?.focus(); }} />}
      <div class="graph-details">{props.details(chosenNode < 0 ? undefined : { side: chosenSide, node: chosenNode }, choose)}</div>
    </div>
  );
}

function Keys() {
  const keys: [string, string][] = [
    ["↑ ↓ Home End", "the node above, below, the first, the last"], ["← →", "close and open"], ["Enter", "choose; its values are below"], ["W S + −", "larger and smaller; also the wheel with Ctrl"],
    ["A D", "left and right"], ["F", "all of it in the window"], ["N P", "next and previous of what was found"], ["B", "the first bad call"], ["M", "the partner"], ["Shift F10", "the menu of a node; also the right button"],
  ];
  return <dl class="keys">{keys.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{t(what)}</dd></div>)}</dl>;
}
