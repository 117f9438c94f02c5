// SPDX-License-Identifier: Apache-2.0
// Modules and the calls in them, of one process at one step, straight from the
// archive: opened level by level, searched, coloured by what is bad below.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, quoted } from "../format";
import { Command, Empty, Show, TextField } from "../parts/basics";
import { CallCard } from "../parts/call_card";
import { PlaceFields, usePlace } from "../parts/place";
import { route, setQuery } from "../route";
import { t } from "../text";
import { firstBadNode, summaryOf, treeOf, visible, type Node, type Tree } from "../tree";

const ROW_PX = 24;
const HEIGHT_PX = 560;

function ancestors(node: Node): string[] {
  const out: string[] = [];
  for (let above = node.parent; above !== undefined; above = above.parent) out.push(above.name);
  return out;
}

function TreeView({ tree, chosen, find }: { tree: Tree; chosen: string; find: string }) {
  const [open, setOpen] = useState<Set<string>>(new Set());
  const [top, setTop] = useState(0);
  const [focused, setFocused] = useState("");
  const frame = useRef<HTMLDivElement>(null);
  const wanted = find.toLowerCase();
  const found = useMemo(() => (wanted === "" ? [] : [...tree.nodes.values()].filter((node) => node.name.toLowerCase().includes(wanted))), [tree, wanted]);

  const reveal = (node: Node) => {
    setOpen((before) => new Set([...before, ...ancestors(node)]));
    setFocused(node.name);
    setQuery({ call: node.name });
  };
  // What the address names is in sight.
  useEffect(() => {
    const node = tree.nodes.get(chosen);
    if (node !== undefined) setOpen((before) => new Set([...before, ...ancestors(node)]));
  }, [tree, chosen]);
  const rows = useMemo(() => visible(tree, open), [tree, open]);
  const at = Math.max(0, rows.findIndex((node) => node.name === (focused || chosen)));
  useEffect(() => {
    const view = frame.current!;
    if (at * ROW_PX < view.scrollTop || (at + 1) * ROW_PX > view.scrollTop + view.clientHeight) view.scrollTop = Math.max(0, at * ROW_PX - HEIGHT_PX / 3);
  }, [at, rows]);

  const toggle = (node: Node, to?: boolean) => setOpen((before) => {
    const after = new Set(before);
    if (to ?? !after.has(node.name)) after.add(node.name);
    else after.delete(node.name);
    return after;
  });
  const onKey = (event: KeyboardEvent) => {
    const node = rows[at];
    if (node === undefined) return;
    const move = (to: Node | undefined) => to !== undefined && setFocused(to.name);
    switch (event.key) {
      case "ArrowDown": move(rows[at + 1]); break;
      case "ArrowUp": move(rows[at - 1]); break;
      case "Home": move(rows[0]); break;
      case "End": move(rows[rows.length - 1]); break;
      case "ArrowRight": node.children.length > 0 && !open.has(node.name) ? toggle(node, true) : move(node.children[0]); break;
      case "ArrowLeft": open.has(node.name) && node.children.length > 0 ? toggle(node, false) : move(node.parent); break;
      case "Enter": case " ": node.entry ? setQuery({ call: node.name }) : toggle(node); break;
      default: return;
    }
    event.preventDefault();
  };
  const step = (by: number) => {
    if (found.length === 0) return;
    const now = found.findIndex((node) => node.name === chosen);
    reveal(found[(now + by + found.length) % found.length]);
  };
  const first = Math.max(0, Math.floor(top / ROW_PX) - 10);
  const shown = rows.slice(first, first + Math.ceil(HEIGHT_PX / ROW_PX) + 20);
  const bad = firstBadNode(tree);
  const inChosen = tree.nodes.get(chosen);
  const below = inChosen && inChosen.bad > 0 ? firstBadNode(tree, inChosen) : undefined;
  return (
    <>
      <div class="tree-tools">
        <button onClick={() => setOpen(new Set([...tree.nodes.values()].filter((node) => node.children.length > 0).map((node) => node.name)))}>{t("Open all")}</button>
        <button onClick={() => setOpen(new Set())}>{t("Close all")}</button>
        {bad && <button class="primary" onClick={() => reveal(bad)}>{t("First bad call")}</button>}
        {below && below !== inChosen && <button onClick={() => reveal(below)}>{t("First bad call in it")}</button>}
        {wanted !== "" && (
          <span role="status">
            {found.length === 0 ? t("no call of this name") : t("{0} found", count(found.length))}{" "}
            <button onClick={() => step(-1)} disabled={found.length === 0}>{t("Previous")}</button>{" "}
            <button onClick={() => step(1)} disabled={found.length === 0}>{t("Next")}</button>
          </span>
        )}
      </div>
      <div class="tree" ref={frame} role="tree" tabIndex={0} aria-label={t("Modules and calls")} aria-activedescendant={rows[at] ? `node-${at}` : undefined}
        onKeyDown={onKey} onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
        <div role="none" style={{ height: `${first * ROW_PX}px` }} />
        {shown.map((node, i) => (
          <div key={node.name} id={`node-${first + i}`} role="treeitem" aria-level={node.depth + 1} aria-selected={node.name === chosen}
            aria-expanded={node.children.length > 0 ? open.has(node.name) : undefined}
            class={`node${node.bad > 0 ? " bad" : ""}${first + i === at ? " at" : ""}${node.name === chosen ? " chosen" : ""}`}
            style={{ paddingLeft: `${8 + 18 * node.depth}px`, height: `${ROW_PX}px` }}
            onDblClick={() => toggle(node)}
            onClick={(event) => {
              setFocused(node.name);
              if ((event.target as HTMLElement).classList.contains("twist")) toggle(node);
              else if (node.entry) setQuery({ call: node.name });
              else toggle(node);
            }}>
            <span class="twist" aria-hidden="true">{node.children.length === 0 ? "" : open.has(node.name) ? "▾" : "▸"}</span>
            <span class={node.name.startsWith("Module.") ? "module" : ""}>{node.name}</span>
            {node.entry && <span class="summary">{summaryOf(node.entry)}</span>}
            {node.children.length > 0 && <span class="summary">{t("{0} calls", count(node.calls))}</span>}
            {node.bad > 0 && <span class="count-bad">{t("{0} bad", count(node.bad))}</span>}
          </div>
        ))}
        <div role="none" style={{ height: `${Math.max(0, rows.length - first - shown.length) * ROW_PX}px` }} />
      </div>
    </>
  );
}

export function Graph({ run }: { run: string }) {
  const { find = "", call: chosen = "" } = route.value.query;
  const { places, where, calls } = usePlace(run);
  const tree = useMemo(() => (calls.value === undefined ? undefined : treeOf(calls.value)), [calls.value]);
  const entry = calls.value?.find((one) => one.entry === chosen);
  return (
    <Show of={places}>
      {() => where === undefined || where.process === undefined ? <Empty><p>{t("Nothing is recorded yet.")}</p></Empty> : (
        <>
          <div class="form">
            <PlaceFields where={where} />
            <TextField label={t("Search")} value={find} wide onChange={(text) => setQuery({ find: text })} />
          </div>
          <Show of={calls}>
            {() => tree === undefined ? null : (
              <div class="split">
                <div><TreeView key={`${where.step} ${where.process}`} tree={tree} chosen={chosen} find={find} /></div>
                <div>{entry ? <CallCard run={run} entry={entry} /> : <p class="note">{t("Choose a call to see its values and its stack.")}</p>}</div>
              </div>
            )}
          </Show>
          <Command text={`rankprobe graph_visualize -tp run:${quoted(run)}@${where.step} -o graph`} />
        </>
      )}
    </Show>
  );
}
