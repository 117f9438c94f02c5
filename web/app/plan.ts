// SPDX-License-Identifier: Apache-2.0
// Recording state of ranks: a plan for a number of steps remains the run's plan after these steps.
import { int } from "./format";
import type { AgentInfo, GetConfigResponse } from "./messages";

// Returns the first step after those of the plan; Infinity if it has no end.
export function endOf(config: GetConfigResponse): number {
  return int(config.forSteps) > 0 ? int(config.effectiveAtStep) + int(config.forSteps) : Infinity;
}

export function isOn(config: GetConfigResponse, agents: AgentInfo[]): boolean {
  const steps = agents.filter((agent) => agent.connected).map((agent) => int(agent.step));
  return config.enabled && (steps.length === 0 || Math.min(...steps) < endOf(config));
}
