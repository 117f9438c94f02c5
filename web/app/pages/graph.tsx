// SPDX-License-Identifier: Apache-2.0
// Modules and the calls in them, of one process at one step, straight from the
// archive: calls that made a NaN or an infinity are counted up to every module.
import { useMemo } from "preact/hooks";
import { whyNoJobs } from "../api";
import { quoted } from "../format";
import { Explorer } from "../graph/explorer";
import { graphOf, type GraphData } from "../graph/model";
import type { CallEntry } from "../messages";
import { Command, Empty, Show } from "../parts/basics";
import { CallCard } from "../parts/call_card";
import { PlaceFields, usePlace } from "../parts/place";
import { t } from "../text";
import { isBad, leavesOf } from "../calls";
import { Together } from "./files";
import { graphHref } from "./graph_file";

// Returns the calls of a step as columns of a database, in which a call also precedes the module around it.
function graphOfCalls(entries: CallEntry[]): GraphData {
  const numbers = new Map<string, number>();
  const names: string[] = [];
  const number = (name: string): number => {
    let known = numbers.get(name);
    if (known === undefined) {
      known = names.length;
      numbers.set(name, known);
      names.push(name);
    }
    return known;
  };
  for (const entry of entries) number(entry.entry);
  for (const entry of entries) if (entry.parent !== undefined) number(entry.parent);
  const parents = names.map(() => -1);
  const overflow = names.map(() => ".");
  for (const entry of entries) {
    const at = number(entry.entry);
    if (leavesOf(entry).some((leaf) => !leaf.given && isBad(leaf.tensor))) overflow[at] = "c";
    if (entry.parent === undefined || entry.parent === entry.entry) continue;
    // Records may contain anything: a node that would become its own ancestor is not moved.
    const up = number(entry.parent);
    let above = up;
    while (above >= 0 && above !== at) above = parents[above];
    if (above < 0) parents[at] = up;
  }
  return graphOf([{ source: "archive", names, parents, kinds: names.map((name) => (name.startsWith("Module.") ? "0" : "1")).join(""), precision: names.map(() => -1),
    overflow: overflow.join(""), microSteps: names.map(() => 0), flags: names.map(() => "0").join("") }], 0);
}

export function Graph({ run }: { run: string }) {
  const { places, where, calls } = usePlace(run);
  const graph = useMemo(() => (calls.value === undefined ? undefined : graphOfCalls(calls.value)), [calls.value]);
  const byName = useMemo(() => new Map((calls.value ?? []).map((entry) => [entry.entry, entry])), [calls.value]);
  return (
    <Show of={places}>
      {() => where === undefined || where.process === undefined ? <Empty><p>{t("Nothing is recorded yet.")}</p></Empty> : (
        <>
          <Show of={calls}>
            {() => graph === undefined ? null : (
              <Explorer graph={graph} titles={[where.process!]} colourings={["overflow"]} microSteps={1} place={<PlaceFields where={where} />} file={`step${where.step}_${where.process}`}
                details={(chosen) => {
                  const entry = chosen && byName.get(graph.sides[0].names[chosen.node]);
                  return entry ? <CallCard run={run} entry={entry} /> : <p class="note">{t("Choose a call to see its values and its stack.")}</p>;
                }} />
            )}
          </Show>
          {whyNoJobs() !== "" ? <p class="note" role="note">{whyNoJobs()} {t("All ranks of this step as one graph:")}</p> : <details class="hand">
            <summary>{t("All ranks of this step, or compared with another run")}</summary>
            <p><a href={graphHref({ target: `run:${run}@${where.step}`, overflowCheck: true })}>{t("All ranks of this step as one graph, with the ranks that they send to")}</a></p>
            <Together names={[]} target={`run:${run}@${where.step}`} />
          </details>}
          <Command text={`rankprobe graph_visualize -tp run:${quoted(run)}@${where.step} -o graph`} />
        </>
      )}
    </Show>
  );
}
