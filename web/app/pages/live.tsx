// SPDX-License-Identifier: Apache-2.0
// The connected ranks and what they record. Recording is switched on and off here, and the effect of a configuration is
// shown before it is sent.
import { useState } from "preact/hooks";
import { call, whyNoSwitch } from "../api";
import { bytes, count, duration, int, parseRanges, processName, quoted } from "../format";
import { asApiError, useLoaded } from "../load";
import type { AgentInfo, ExplainResponse, GetConfigResponse, SwitchResult } from "../messages";
import { isOn } from "../plan";
import { Card, Command, Empty, Failure, Field, NoSwitch, Show, TextField } from "../parts/basics";
import { Table, type Column } from "../parts/table";
import { t } from "../text";

const STATES: Record<string, string> = {
  STATE_APPLIED: "follows", STATE_PREPARED: "prepared", STATE_REFUSED: "refused", STATE_SILENT: "silent", STATE_LOST: "lost",
};

function Agents({ agents }: { agents: AgentInfo[] }) {
  const columns: Column<AgentInfo>[] = [
    { name: t("Process"), text: (agent) => processName(agent.identity.rank, agent.identity.pid) },
    { name: t("Host"), text: (agent) => agent.identity.host },
    { name: t("Pid"), text: (agent) => int(agent.identity.pid), numeric: true },
    { name: t("State"), text: (agent) => (agent.connected ? (agent.dumping ? "dumping" : "connected") : "disconnected"),
      show: (agent) => <span class={`badge ${agent.connected ? "live" : "bad"}`}>{!agent.connected ? t("disconnected") : agent.dumping ? t("dumping") : t("connected")}</span> },
    { name: t("Step"), text: (agent) => int(agent.step), numeric: true },
    { name: t("Lag"), text: (agent) => int(agent.lagSteps), numeric: true },
    { name: t("Step time"), text: (agent) => int(agent.stepNs), numeric: true, show: (agent) => duration(agent.stepNs) },
    { name: t("Silent"), text: (agent) => int(agent.silentMs), numeric: true, show: (agent) => duration(int(agent.silentMs) * 1e6) },
    { name: t("Received"), text: (agent) => int(agent.receivedBytes), numeric: true, show: (agent) => bytes(agent.receivedBytes) },
    { name: t("Lost records"), text: (agent) => int(agent.lostRecords), numeric: true, show: (agent) => count(agent.lostRecords) },
    { name: t("Plan"), text: (agent) => int(agent.planEpoch), numeric: true },
    { name: t("Framework"), text: (agent) => agent.frameworkVersion },
  ];
  return (
    <Table rows={agents} columns={columns} file="ranks.csv" label={t("Ranks")} heightPx={420}
      rowKey={(agent) => `${agent.identity.rank ?? ""} ${agent.identity.pid} ${agent.identity.host}`}
      rowClass={(agent) => (!agent.connected ? "gone" : agent.configFault ? "bad" : "")} />
  );
}

function Preview({ said }: { said: ExplainResponse }) {
  return (
    <div class="preview">
      {said.stages.filter((stage) => !stage.passes).map((stage) => <p key={stage.stage}>{stage.stage}: {stage.reason}</p>)}
      {said.ranks.map((rank) => {
        const kept = rank.stages.find((stage) => !stage.passes);
        const recorded = rank.calls.filter((one) => one.captured);
        return (
          <details key={`${rank.identity.rank} ${rank.identity.pid}`}>
            <summary>
              {processName(rank.identity.rank, rank.identity.pid)}: {kept ? `${kept.stage}: ${kept.reason}`
                : t("{0} of {1} calls of its last step would be recorded, {2} with their tensors", recorded.length, rank.calls.length, recorded.filter((one) => one.withPayload).length)}
            </summary>
            <ul>
              {rank.calls.slice(0, 500).map((one) => (
                <li key={one.entry} class={one.captured ? "taken" : "left"}>{one.entry}{one.captured ? (one.withPayload ? ` + ${t("tensors")}` : "") : ` – ${one.stage}: ${one.reason}`}</li>
              ))}
            </ul>
          </details>
        );
      })}
    </div>
  );
}

function Switch({ run, config, agents, changed }: { run: string; config: GetConfigResponse; agents: AgentInfo[]; changed: () => void }) {
  const [ranks, setRanks] = useState("");
  const [atStep, setAtStep] = useState("");
  const [forSteps, setForSteps] = useState("3");
  const [text, setText] = useState<string>();
  const [result, setResult] = useState<SwitchResult>();
  const [preview, setPreview] = useState<ExplainResponse>();
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const held = busy || whyNoSwitch() !== "";
  const on = isOn(config, agents);
  const configText = text ?? pretty(config.configJson);
  const edited = text !== undefined && text !== pretty(config.configJson);

  const run1 = async (ask: () => Promise<void>) => {
    setBusy(true);
    setError(undefined);
    try {
      await ask();
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
    changed();
  };
  const send = (enable: boolean) => run1(async () => {
    const chosen = parseRanges(ranks);
    if (chosen === undefined) throw new Error(t("ranks: not like 0,2-3"));
    for (const [name, value] of [["at step", atStep], ["for steps", forSteps]]) {
      if (value !== "" && !/^\d+$/.test(value)) throw new Error(t("{0}: not a number of steps", name));
    }
    setResult(undefined);
    setResult(await call<SwitchResult>("ControlService/SetDumpEnable", {
      run, enable, expectedEpoch: config.epoch, configJson: enable && edited ? configText : "",
      options: { ranks: chosen.map(String), atStep: atStep === "" ? undefined : atStep, forSteps: enable ? forSteps || "0" : "0", timeoutMs: 5000 },
    }));
    setText(undefined);
  });
  const words = ["rankprobe", "enable", "--run", quoted(run)];
  if (ranks !== "") words.push("--ranks", ranks);
  if (atStep !== "") words.push("--at-step", atStep);
  if (forSteps !== "" && forSteps !== "0") words.push("--for-steps", forSteps);
  return (
    <Card title={on ? t("Dumping is on") : t("Dumping is off")} kind={on ? "good" : ""}>
      {config.enabled && int(config.forSteps) > 0 && <p class="note">{t("{0} steps from step {1}", int(config.forSteps), int(config.effectiveAtStep))}{!on && ` (${t("these steps have ended")})`}</p>}
      {config.configFault !== "" && <p class="failure">{config.configFault}</p>}
      <div class="form">
        <TextField label={t("Ranks (all if empty)")} value={ranks} placeholder="0,2-3" onChange={setRanks} />
        <TextField label={t("At step (soonest if empty)")} value={atStep} onChange={setAtStep} />
        <TextField label={t("For steps (0: until switched off)")} value={forSteps} onChange={setForSteps} />
        <button class="primary" disabled={held} onClick={() => send(true)}>{t("Switch on")}</button>
        <button disabled={held} onClick={() => send(false)}>{t("Switch off")}</button>
        <button disabled={held} onClick={() => run1(async () => { await call("ControlService/ShipFlight", { run }); })}>{t("Keep the flight recorder's steps")}</button>
      </div>
      <NoSwitch />
      <details>
        <summary>{t("config.json: what is recorded")}</summary>
        <Field label={t("If you change it here, it is sent with “Switch on”")}>
          <textarea rows={14} spellcheck={false} value={configText} onInput={(event) => setText(event.currentTarget.value)} />
        </Field>
        <button disabled={busy} onClick={() => run1(async () => setPreview(await call<ExplainResponse>("ControlService/Explain", { run, configJson: configText, maxCalls: 2000 })))}>
          {t("What would it record?")}
        </button>
        {edited && <button onClick={() => setText(undefined)}>{t("Undo the changes")}</button>}
        {preview && <Preview said={preview} />}
      </details>
      {error !== undefined && <Failure error={asApiError(error)} />}
      {result && (
        <div class="done" role="status">
          <p>{result.summary}{result.waits && ` – ${t("the ranks are idle and apply this at their next step")}`}</p>
          <ul>
            {result.ranks.map((rank) => (
              <li key={`${rank.rank} ${rank.pid}`} class={rank.state === "STATE_APPLIED" || rank.state === "STATE_PREPARED" ? "taken" : "left"}>
                {processName(rank.rank, rank.pid)}: {t(STATES[rank.state] ?? rank.state)}
                {rank.state === "STATE_APPLIED" && ` ${t("from step {0}", int(rank.appliedStep))}`} {rank.reason}
              </li>
            ))}
          </ul>
        </div>
      )}
      <Command text={words.join(" ")} />
    </Card>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

export function Live({ run }: { run: string }) {
  const agents = useLoaded(`agents ${run}`, (signal) => call<{ agents: AgentInfo[] }>("ControlService/ListAgents", { run }, signal), 1000);
  const config = useLoaded(`config ${run}`, (signal) => call<GetConfigResponse>("ControlService/GetConfig", { run }, signal), 2000);
  return (
    <>
      <Show of={config}>{(value) => <Switch run={run} config={value} agents={agents.value?.agents ?? []} changed={config.reload} />}</Show>
      <h2>{t("Ranks")}</h2>
      <Show of={agents}>
        {(value) => value.agents.length === 0 ? (
          <Empty>
            <p>{t("No rank of this run is connected. A switch counts for those that connect later.")}</p>
            <Command text={`RANKPROBE_RUN=${quoted(run)} rankprobe run -- python train.py`} />
          </Empty>
        ) : <Agents agents={value.agents} />}
      </Show>
    </>
  );
}
