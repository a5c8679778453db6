#include "serve/divergence.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace tercet {
namespace {

struct Best {
  int32_t token;
  double lead;  // over the next
};

Best best_of(std::span<const int32_t> ids, std::span<const float> logprobs) {
  size_t best = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    if (logprobs[i] > logprobs[best]) best = i;
  }
  double next = -INFINITY;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i != best) next = std::max(next, static_cast<double>(logprobs[i]));
  }
  return {ids[best], logprobs[best] - next};
}

template <class T>
std::span<const T> row_of(const std::vector<T>& all, const TopLogprobs& top, int64_t row) {
  return std::span(all).subspan(static_cast<size_t>(row * top.top), static_cast<size_t>(top.top));
}

}  // namespace

double kl_divergence(std::span<const int32_t> a_ids, std::span<const float> a, std::span<const int32_t> b_ids,
                     std::span<const float> b) {
  constexpr double kLeastRest = 1e-9;
  std::unordered_map<int32_t, double> b_logprob;
  for (size_t i = 0; i < b_ids.size(); ++i) b_logprob[b_ids[i]] = b[i];
  double kl = 0, a_sum = 0, b_sum = 0;
  for (size_t i = 0; i < a_ids.size(); ++i) {
    const auto found = b_logprob.find(a_ids[i]);
    if (found == b_logprob.end()) continue;
    const double pa = std::exp(static_cast<double>(a[i]));
    kl += pa * (a[i] - found->second);
    a_sum += pa;
    b_sum += std::exp(found->second);
  }
  const double a_rest = std::max(1 - a_sum, kLeastRest);
  const double b_rest = std::max(1 - b_sum, kLeastRest);
  return kl + a_rest * std::log(a_rest / b_rest);
}

Result<Divergence> compare(const std::map<int, TopLogprobs>& a, const std::map<int, TopLogprobs>& b) {
  Divergence out;
  std::vector<double> kl;
  for (const auto& [index, left] : a) {
    const auto found = b.find(index);
    if (found == b.end()) return fail("sequence {} of the first file is not in the second", index);
    const TopLogprobs& right = found->second;
    if (left.rows != right.rows) {
      return fail("sequence {}: {} positions in the first file, {} in the second", index, left.rows,
                  right.rows);
    }
    for (int64_t row = 0; row < left.rows; ++row) {
      const auto a_ids = row_of(left.ids, left, row), b_ids = row_of(right.ids, right, row);
      const auto a_logprobs = row_of(left.logprobs, left, row),
                 b_logprobs = row_of(right.logprobs, right, row);
      kl.push_back(kl_divergence(a_ids, a_logprobs, b_ids, b_logprobs));
      const Best best = best_of(a_ids, a_logprobs);
      const bool equal = best.token == best_of(b_ids, b_logprobs).token;
      const bool sure = best.lead >= 1;
      out.top1_equal += equal;
      out.sure += sure;
      out.sure_equal += sure && equal;
    }
  }
  if (kl.empty()) return fail("nothing to compare: no positions");
  std::sort(kl.begin(), kl.end());
  out.positions = static_cast<int64_t>(kl.size());
  for (const double value : kl) out.mean += value / static_cast<double>(kl.size());
  out.median = kl[kl.size() / 2];
  out.percentile99 = kl[std::min(kl.size() - 1, kl.size() * 99 / 100)];
  out.maximum = kl.back();
  return out;
}

}  // namespace tercet
