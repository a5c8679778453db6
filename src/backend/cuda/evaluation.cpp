#include "backend/cuda/evaluation.h"

#include <algorithm>

#include "backend/cuda/kernels/logits.h"
#include "backend/cuda/runtime/status.h"
#include "backend/reference/draw.h"
#include "base/check.h"

namespace tercet::cuda {
namespace {

/// Penalties, bias, masks and truncation need the row in order, as do the most probable tokens.
bool for_the_host(const RowOutput& output) {
  const DrawParams& p = output.params;
  const bool plain = p.top_k == 0 && p.top_p >= 1.0F && p.min_p <= 0.0F && p.bias.empty() && p.mask.empty() &&
                     (p.counts.empty() || (p.repetition_penalty == 1.0F && p.presence_penalty == 0.0F &&
                                           p.frequency_penalty == 0.0F));
  return output.top > 0 || (output.draw && !plain);
}

}  // namespace

Evaluation::Evaluation(Launcher& launcher, int64_t& held)
    : launcher_(launcher), parts_(launcher, held), all_(launcher, held), results_(launcher) {}

std::vector<RowResult> Evaluation::run(StepInput& input, const uint8_t* failed, Rows logits,
                                       std::span<const RowOutput> outputs) {
  std::vector<RowResult> results(outputs.size());
  if (outputs.empty()) return results;
  const auto vocabulary = static_cast<size_t>(logits.cols);
  std::vector<LogitRow> wanted;
  bool any_all = false;
  for (const RowOutput& output : outputs) {
    const bool here = !for_the_host(output);
    any_all = any_all || (output.all && here);
    if (output.target >= 0) TERCET_CHECK_LT(output.target, logits.cols);
    wanted.push_back({output.params.seed, output.params.position, output.draw && here ? 1 : 0,
                      output.params.temperature, output.target, output.row, 0});
  }
  LogitParams p{};
  p.logits = logits.data;
  p.wanted = input.put(wanted.data(), logits.rows);
  p.parts = parts_.get<LogitPart>(logits.rows * kLogitParts);
  p.results = results_.get<LogitResult>(logits.rows);
  if (any_all) p.all = all_.get<float>(logits.rows * logits.cols);
  p.failed = failed;
  p.rows = static_cast<int32_t>(logits.rows);
  p.vocabulary = static_cast<int32_t>(logits.cols);
  evaluate_logits(launcher_, p);
  launcher_.wait();
  const auto fetch = [](auto* to, const auto* from, size_t count) {
    check(cudaMemcpy(to, from, count * sizeof *to, cudaMemcpyDeviceToHost));
  };
  std::vector<float> row;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const LogitResult& found = p.results[i];
    results[i].failed = found.failed != 0;
    if (results[i].failed) continue;
    if (for_the_host(outputs[i])) {
      row.resize(vocabulary);
      fetch(row.data(), logits.data + i * vocabulary, vocabulary);
      results[i] = reference::evaluate(row, outputs[i]);
      continue;
    }
    results[i].token = found.token;
    results[i].logprob = found.logprob;
    if (!outputs[i].all) continue;
    results[i].all.resize(vocabulary);
    fetch(results[i].all.data(), p.all + i * vocabulary, vocabulary);
  }
  return results;
}

}  // namespace tercet::cuda
