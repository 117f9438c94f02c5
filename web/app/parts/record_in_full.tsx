// SPDX-License-Identifier: Apache-2.0
// A button that records the tensors of one call at the next step, and the link to them. Calls are numbered from the
// start in each step, so the same call in another step is identified by its module, its stack and its shapes.
import { useState } from "preact/hooks";
import { call, stream, whyNoSwitch } from "../api";
import { callName, kept, leavesOf, shapeText } from "../calls";
import { int } from "../format";
import { asApiError } from "../load";
import type { AgentInfo, CallEntry, GetConfigResponse, SwitchResult } from "../messages";
import { endOf, isOn } from "../plan";
import { href } from "../route";
import { t } from "../text";
import { Failure, NoSwitch } from "./basics";

// Longest time until the records of a step are in the archive, and interval between two checks.
const LATEST_MS = 20_000;
const LOOK_MS = 500;

// Returns equal texts for the same call in two steps. The number at the end of a module's name is that of its call.
function identity(entry: CallEntry): string {
  const shapes = leavesOf(entry).map((leaf) => (leaf.tensor === undefined ? leaf.name : `${leaf.name} ${shapeText(leaf.tensor)}`));
  return JSON.stringify([callName(entry.entry), (entry.parent ?? "").replace(/\.\d+$/, ""), entry.stack ?? [], shapes]);
}

interface Kept {
  step: number;
  entry: string;
  value: string;
}

// Returns the value of the call to show first; undefined if the archive has none of its tensors in full.
function inFull(entry: CallEntry, step: number): Kept | undefined {
  const leaves = leavesOf(entry).filter((leaf) => leaf.tensor !== undefined && kept(leaf.tensor));
  const value = leaves.find((leaf) => !leaf.given) ?? leaves[0];
  return value === undefined ? undefined : { step, entry: entry.entry, value: value.name };
}

// Returns the first of these steps in which the call was made and is in the archive in full; undefined if there is
// none.
async function findAgain(run: string, rank: number, wanted: CallEntry, first: number, last: number): Promise<Kept | undefined> {
  for (const end = performance.now() + LATEST_MS; performance.now() < end; await new Promise((resolve) => setTimeout(resolve, LOOK_MS))) {
    for (let step = first; step <= last; ++step) {
      for await (const one of stream<CallEntry>("ArchiveService/ListCalls", { run, step: String(step), rank: rank < 0 ? undefined : String(rank), contains: callName(wanted.entry), context: true })) {
        const found = inFull(one, step);
        if (found !== undefined && identity(one) === identity(wanted)) return found;
      }
    }
  }
  return undefined;
}

function ShowTensors({ run, rank, found }: { run: string; rank: number; found: Kept }) {
  return <a href={href("tensor", run, { step: found.step, rank: rank < 0 ? undefined : rank, call: found.entry, value: found.value })}>{t("Show its tensors at step {0}", found.step)}</a>;
}

// Records statistics as before and the tensors of calls of this name, then restores the previous configuration. A
// trigger rule keeps the tensors of the call at which it fires; in that case they already exist.
export function RecordInFull({ run, step, rank, entry, live }: { run: string; step: number; rank: number; entry: CallEntry; live: boolean }) {
  const there = inFull(entry, step);
  const [said, setSaid] = useState<string[]>([]);
  const [tensors, setTensors] = useState<Kept | undefined>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState("");
  const record = async () => {
    setBusy(t("The ranks agree on a step …"));
    setError(undefined);
    setSaid([]);
    setTensors(undefined);
    try {
      const [before, { agents }] = await Promise.all([
        call<GetConfigResponse>("ControlService/GetConfig", { run }),
        call<{ agents: AgentInfo[] }>("ControlService/ListAgents", { run }),
      ]);
      const wasOn = isOn(before, agents);
      const config = JSON.parse(before.configJson || "{}");
      const section = { ...config[config.task === "statistics" ? "statistics" : ""], tensor_list: [callName(entry.entry)] };
      const first = await call<SwitchResult>("ControlService/SetDumpEnable", {
        run, enable: true, configJson: JSON.stringify({ ...config, task: "statistics", step: [], statistics: section }), expectedEpoch: before.epoch,
        // If recording was off, it ends by itself, in case this page is closed.
        options: { forSteps: wasOn ? "0" : "1", timeoutMs: 8000 } });
      const begin = int(first.effectiveAtStep);
      setSaid([t("In full from step {0}: {1}", begin, first.summary)]);
      if (first.waits) {
        setSaid([t("The ranks are idle: they apply this at their next step and record one step with it.")]);
      } else {
        const left = endOf(before) - begin - 1;
        const second = await call<SwitchResult>("ControlService/SetDumpEnable", {
          run, enable: wasOn, configJson: before.configJson, expectedEpoch: first.epoch,
          options: { forSteps: wasOn && Number.isFinite(left) ? String(Math.max(1, left)) : "0", timeoutMs: 8000 } });
        const last = int(second.effectiveAtStep) - 1;
        setSaid([t("In full in steps {0} to {1}; then as before.", begin, last)]);
        setBusy(t("Waiting for its tensors …"));
        const found = await findAgain(run, rank, entry, begin, last);
        if (found === undefined) setSaid((before) => [...before, t("No call with this module, line and shapes was made in these steps.")]);
        setTensors(found);
      }
    } catch (failure) {
      setError(failure);
    }
    setBusy("");
  };
  return (
    <>
      {there !== undefined && <p class="done"><ShowTensors run={run} rank={rank} found={there} /></p>}
      <button class="primary" disabled={!live || busy !== "" || whyNoSwitch() !== ""} onClick={() => void record()}>{t("Record this call in full at the next step")}</button>
      {!live && <span class="note"> {t("No rank is connected.")}</span>}
      <NoSwitch />
      {busy !== "" && <span class="waiting" aria-busy="true"> {busy}</span>}
      {said.length > 0 && (
        <p class="done" role="status">
          {said.join(" ")}{" "}
          {tensors !== undefined && <ShowTensors run={run} rank={rank} found={tensors} />}
        </p>
      )}
      {error !== undefined && <Failure error={asApiError(error)} />}
    </>
  );
}
