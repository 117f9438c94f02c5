// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/report_messages.h"

namespace rankprobe::analysis {

v1::DivergenceReport ToMessage(const DivergenceReport& report) {
  v1::DivergenceReport out;
  for (const Divergence& d : report.origins) {
    v1::DivergenceReport::Origin& origin = *out.add_origins();
    origin.set_step(d.step);
    origin.set_rank(d.rank);
    origin.set_call(d.call);
    origin.set_from_outside(d.from_outside);
    origin.set_reference_call(d.reference_call);
    origin.set_row(d.row);
    origin.set_target(d.target_values);
    origin.set_reference(d.reference_values);
    origin.set_difference(d.difference);
    origin.set_tolerance(d.tolerance);
    if (d.noise.has_value()) origin.set_noise(*d.noise);
    origin.set_inputs_matched(d.inputs_matched);
    origin.set_inputs_unknown(d.inputs_unknown);
    origin.set_inputs_infinite(d.inputs_infinite);
    origin.set_reference_step(d.reference_step);
    origin.set_module(d.module);
    origin.set_code_line(d.code_line);
    origin.set_is_argument(d.is_argument);
    origin.set_made_by(d.made_by);
    origin.set_inputs_close(d.inputs_close);
    origin.mutable_unmade_inputs()->Assign(d.unmade_inputs.begin(),
                                           d.unmade_inputs.end());
    origin.set_gap_after(d.gap_after);
    origin.mutable_stack()->Assign(d.stack.begin(), d.stack.end());
  }
  for (const DivergenceReport::Carried& c : report.carried) {
    v1::DivergenceReport::Carried& carried = *out.add_carried();
    carried.set_step(c.step);
    carried.set_rank(c.rank);
    carried.set_call(c.call);
    carried.set_from_rank(c.from_rank);
  }
  out.mutable_notes()->Assign(report.notes.begin(), report.notes.end());
  out.mutable_explanations()->Assign(report.explanations.begin(),
                                     report.explanations.end());
  out.set_calls_compared(report.calls_compared);
  out.set_calls_differing(report.calls_differing);
  v1::DivergenceReport::Unseen& unseen = *out.mutable_unseen();
  unseen.set_only_in_target(report.unseen.only_in_target);
  unseen.set_only_in_reference(report.unseen.only_in_reference);
  unseen.set_rows_without_partner(report.unseen.rows_without_partner);
  unseen.set_rows_without_values(report.unseen.rows_without_values);
  unseen.set_lost(report.unseen.lost);
  unseen.mutable_examples()->Assign(report.unseen.examples.begin(),
                                    report.unseen.examples.end());
  return out;
}

v1::ReplicaReport ToMessage(const ReplicaReport& report) {
  v1::ReplicaReport out;
  for (const ReplicaDifference& d : report.differences) {
    v1::ReplicaReport::Difference& difference = *out.add_differences();
    difference.set_kind(ReplicaKindName(d.kind));
    difference.set_step(d.step);
    difference.set_row(d.row);
    for (const auto& [ranks, content] : d.values) {
      auto& value = *difference.add_values();
      value.mutable_ranks()->Assign(ranks.begin(), ranks.end());
      value.set_content(content);
    }
  }
  out.set_rows_compared(report.rows_compared);
  out.set_rows_on_one_rank(report.rows_on_one_rank);
  out.set_rows_without_values(report.rows_without_values);
  out.set_transfers_compared(report.transfers_compared);
  out.set_collectives_compared(report.collectives_compared);
  out.set_rows_of_shards(report.rows_of_shards);
  return out;
}

v1::OverflowReport ToMessage(const OverflowFindings& findings,
                             const std::string& file) {
  v1::OverflowReport out;
  out.set_file(file);
  const auto fill = [](const OverflowOrigin& from,
                       v1::OverflowReport::Origin* to) {
    to->set_rank(from.rank);
    to->set_call(from.call);
    to->set_made(from.made);
    to->set_module(from.module);
    to->mutable_chain()->Assign(from.chain.begin(), from.chain.end());
    to->set_code_line(from.code_line);
    to->mutable_inputs()->Assign(from.inputs.begin(), from.inputs.end());
    to->mutable_outputs()->Assign(from.outputs.begin(), from.outputs.end());
  };
  for (const OverflowOrigin& o : findings.found) fill(o, out.add_found());
  for (const OverflowOrigin& o : findings.ended) fill(o, out.add_ended());
  return out;
}

}  // namespace rankprobe::analysis
