// SPDX-License-Identifier: Apache-2.0
// Pairs of nodes that the user matches: the server judges them like all others,
// and the page keeps them until they are saved as a mapping. The database is
// not changed.
import { useEffect, useMemo, useState } from "preact/hooks";
import { asApiError, useLoaded } from "../load";
import { route, setQuery } from "../route";
import { saveBlob } from "../save";
import { t } from "../text";
import type { ApiError } from "../api";
import { Failure } from "../parts/basics";
import type { Chosen } from "./explorer";
import type { MenuEntry } from "./menu";
import { BY_HAND, type GraphData } from "./model";
import { addPairs, NO_PAIRS, pairsFor, takeApart, type HandPairs } from "./pairs";
import { judge, loadMapping, saveMapping, type JudgedPair } from "./source";

export interface Pairs {
  hand: HandPairs;
  judged: { target: number; reference: number; precision: number }[];
  apart: [number, number][];
  byTarget: Map<string, JudgedPair>;
  refused: string[];
  error?: ApiError;
  // The node that waits for its partner.
  waiting?: { side: number; node: number };
  withChildren: boolean;
  setWithChildren: (value: boolean) => void;
  wait: (waiting: { side: number; node: number } | undefined) => void;
  pick: (graph: GraphData, side: number, node: number) => boolean;
  separate: (graph: GraphData, target: number) => void;
  set: (hand: HandPairs) => void;
  menu: (graph: GraphData, side: number, node: number) => MenuEntry[];
}

export function usePairs(db: string, step: number, rank: number, graph: GraphData | undefined): Pairs {
  const place = `${db} ${step} ${rank}`;
  const [all, setAll] = useState<Record<string, HandPairs>>({});
  const [waiting, wait] = useState<{ side: number; node: number } | undefined>();
  const [withChildren, setWithChildren] = useState(false);
  const hand = all[place] ?? NO_PAIRS;
  const set = (value: HandPairs) => setAll((before) => ({ ...before, [place]: value }));
  useEffect(() => wait(undefined), [place]);
  // Pairs of the mapping that the address names.
  const { map = "" } = route.value.query;
  const mapping = useLoaded(`mapping ${map} ${place}`, async (signal) => (map === "" ? [] : loadMapping(map, signal)));
  useEffect(() => {
    if (mapping.value !== undefined && mapping.value.length > 0) set(addPairs(NO_PAIRS, mapping.value));
  }, [mapping.value]);
  const key = JSON.stringify([place, hand.matched]);
  const answer = useLoaded(key, async () => (hand.matched.length === 0 ? [] : judge(db, step, rank, hand.matched)));
  // Until the answer arrives, the last one is used.
  const [judgedBy, setJudgedBy] = useState<{ place: string; matched: [string, string][]; results: JudgedPair[] }>({ place, matched: [], results: [] });
  useEffect(() => {
    if (answer.value !== undefined) setJudgedBy({ place, matched: hand.matched, results: answer.value });
  }, [answer.value]);
  const known = judgedBy.place === place ? judgedBy : { matched: [], results: [] };
  const { judged, byTarget, refused } = useMemo(() => {
    const judged: Pairs["judged"] = [];
    const byTarget = new Map<string, JudgedPair>();
    const refused: string[] = [];
    if (graph !== undefined) known.results.forEach((result, i) => {
      const [a, b] = known.matched[i] ?? ["", ""];
      const target = graph?.sides[0].numbers.get(a);
      const reference = graph?.sides[1]?.numbers.get(b);
      if (result.refused !== undefined || target === undefined || reference === undefined) refused.push(`${a} ⇄ ${b}: ${result.refused ?? t("not in this graph")}`);
      else {
        judged.push({ target, reference, precision: result.precision ?? -1 });
        byTarget.set(a, result);
      }
    });
    return { judged, byTarget, refused };
  }, [judgedBy, graph, place]);
  const apart = useMemo(() => hand.apart.flatMap(([a, b]): [number, number][] => {
    const target = graph?.sides[0].numbers.get(a);
    const reference = graph?.sides[1]?.numbers.get(b);
    return target === undefined || reference === undefined ? [] : [[target, reference]];
  }), [hand.apart, graph]);
  const separate = (shown: GraphData, target: number) => set(takeApart(hand, shown, target));
  const pick = (shown: GraphData, side: number, node: number): boolean => {
    if (waiting === undefined || waiting.side === side) return false;
    const [target, reference] = waiting.side === 0 ? [waiting.node, node] : [node, waiting.node];
    if (shown.sides[side].partners![node] >= 0) return false;
    wait(undefined);
    set(addPairs(hand, pairsFor(shown, target, reference, withChildren)));
    setQuery({ node: shown.sides[0].names[target], side: undefined });
    return true;
  };
  const menu = (shown: GraphData, side: number, node: number): MenuEntry[] => {
    const { partners } = shown.sides[side];
    if (partners === undefined) return [];
    if (partners[node] < 0) return [[t("Match by hand …"), () => wait({ side, node })]];
    return [[t("Remove the match"), () => separate(shown, side === 0 ? node : partners[node])]];
  };
  return { hand, judged, apart, byTarget, refused, error: answer.error ?? mapping.error, waiting, withChildren, setWithChildren, wait, pick, separate, set, menu };
}

export function HandMatching({ db, step, rank, graph, pairs, chosen, onDisk }: {
  db: string; step: number; rank: number; graph: GraphData; pairs: Pairs; chosen: Chosen | undefined; onDisk: boolean }) {
  const [said, setSaid] = useState("");
  const [error, setError] = useState<ApiError | undefined>();
  const side = chosen && graph.sides[chosen.side];
  const partner = side === undefined ? -1 : side.partners![chosen!.node];
  const name = `${db.replace(/^.*\//, "").replace(/^@\d+$/, "graph").replace(/\.vis\.db$/, "")}_${step}_${rank}.vis.config`;
  // Content of the file: all pairs that the user made.
  const text = () => JSON.stringify(Object.fromEntries(pairs.hand.matched), undefined, 1);
  const attempt = (run: () => Promise<void>) => {
    setError(undefined);
    setSaid("");
    run().catch((fault) => setError(asApiError(fault)));
  };
  const save = () => attempt(async () => {
    const path = await saveMapping(db, step, rank, pairs.hand.matched);
    setSaid(t("Saved as {0}", path));
    setQuery({ map: path }, true);
  });
  const load = (file: File | undefined) => file && attempt(async () => {
    if (file.size > 1 << 20) throw new Error(t("A mapping has at most 1 MiB."));
    const read: unknown = JSON.parse(await file.text());
    if (typeof read !== "object" || read === null || Array.isArray(read) || Object.values(read).some((value) => typeof value !== "string")) throw new Error(t("This is not a mapping: {\"name\": \"name\", ..}"));
    pairs.set(addPairs(pairs.hand, Object.entries(read as Record<string, string>)));
    setSaid(t("{0} pairs read", Object.keys(read).length));
  });
  const changed = pairs.hand.matched.length + pairs.hand.apart.length;
  return (
    <details class="hand" open={changed > 0 || pairs.waiting !== undefined}>
      <summary>{t("Match by hand")}{changed > 0 ? ` · ${t("{0} changes", changed)}` : ""}</summary>
      <p class="note">{t("Choose a grey node, press “Match by hand”, then click its partner on the other side: forward and backward are matched together. Your matches stay in this page until you save them as a mapping beside the database; the database itself is not changed.")}</p>
      <div class="graph-bar">
        {side !== undefined && partner < 0 && pairs.waiting === undefined && <button class="primary" onClick={() => pairs.wait({ side: chosen!.side, node: chosen!.node })}>{t("Match by hand …")}</button>}
        {pairs.waiting !== undefined && (
          <>
            <strong role="status">{t("Now click the partner of {0} on the other side.", graph.sides[pairs.waiting.side].names[pairs.waiting.node])}</strong>
            <button onClick={() => pairs.wait(undefined)}>{t("Cancel")}</button>
          </>
        )}
        {side !== undefined && partner >= 0 && <button onClick={() => pairs.separate(graph, chosen!.side === 0 ? chosen!.node : partner)}>{t("Remove the match")}{(side.flags[chosen!.node] & BY_HAND) !== 0 ? ` (${t("made by hand")})` : ""}</button>}
        <label class="check"><input type="checkbox" checked={pairs.withChildren} onChange={() => pairs.setWithChildren(!pairs.withChildren)} /> {t("with their children")}</label>
        <span class="grow" />
        {onDisk && <button disabled={pairs.hand.matched.length === 0} onClick={save}>{t("Save the mapping")}</button>}
        <button disabled={pairs.hand.matched.length === 0} onClick={() => saveBlob(name, new Blob([text()], { type: "application/json" }))}>{t("Download")}</button>
        <label class="file">{t("Load a mapping")}<input type="file" accept=".config,.json" onChange={(event) => load(event.currentTarget.files?.[0])} /></label>
        <button disabled={changed === 0} onClick={() => { pairs.set(NO_PAIRS); setQuery({ map: undefined }, true); }}>{t("Undo all")}</button>
      </div>
      {said !== "" && <p class="good-line" role="status">{said}</p>}
      {error && <Failure error={error} />}
      {pairs.error && <Failure error={pairs.error} />}
      {pairs.refused.map((line) => <p key={line} class="failure">{line}</p>)}
      {pairs.hand.matched.length > 0 && <ul class="leaves">{pairs.hand.matched.slice(0, 200).map(([a, b]) => <li key={`${a} ${b}`}>{a} ⇄ {b}</li>)}</ul>}
      {pairs.hand.apart.length > 0 && <ul class="leaves">{pairs.hand.apart.slice(0, 200).map(([a, b]) => <li key={`${a} ${b}`}>{a} ⇹ {b}</li>)}</ul>}
    </details>
  );
}
