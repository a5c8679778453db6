// The first promise on a GPU, with models of the true shapes: the fast kernels give the bits of the plain
// CUDA kernels however a prompt is cut, cached and batched. The plain ones read each prompt once; what a row
// becomes depends on the tokens before it alone, so every row of every run is compared with theirs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "backend/cuda/cuda_ops.h"
#include "base/philox.h"
#include "harness.h"

namespace tercet::verify {
namespace {

bool full() { return std::getenv("TERCET_FULL") != nullptr; }

constexpr int32_t kLongest = 4097, kCached = 700, kPages = 256, kPlainRows = 1024;
constexpr int32_t kShortPrompts = 9, kShortTokens = 96;
constexpr uint64_t kDrawSeed = 77;

/// Where kernels, tiles and blocks change, one below and one above.
constexpr int32_t kThresholds[] = {383, 384, 385, 409,  410,  411,  511,  512,  513,  639,  640, 641,
                                   819, 820, 821, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 4097};

std::vector<int32_t> lengths_up_to(int32_t last) {
  std::vector<int32_t> out;
  for (int32_t length = 1; length <= last; ++length) out.push_back(length);
  out.insert(out.end(), std::begin(kThresholds), std::end(kThresholds));
  return out;
}

/// Of each position all log-probabilities, and a token drawn at temperature 1 with its own.
struct Results {
  std::vector<float> all;  // [positions][vocabulary]
  std::vector<int32_t> drawn;
  std::vector<float> logprob;

  void add(const RowResult& row) {
    all.insert(all.end(), row.all.begin(), row.all.end());
    drawn.push_back(row.token);
    logprob.push_back(row.logprob);
  }
};

/// A prompt and what the plain kernels make of it.
struct Known {
  std::vector<int32_t> tokens;
  uint64_t seed;
  Results main, mtp;  // of the MTP layer without the last position

  bool is_last(int32_t position) const { return static_cast<size_t>(position) + 1 == tokens.size(); }
};

/// Tokens [begin, end) of a prompt in a step.
struct Piece {
  const Known* known;
  int32_t begin, end;
  std::vector<int32_t> pages;
};

int32_t pages_for(int32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

/// Random pages of [first, kPages), so that what an earlier run left there is other positions' keys.
class Pages {
 public:
  Pages(int32_t first, uint64_t key) {
    for (int32_t page = first; page < kPages; ++page) free_.push_back(page);
    std::shuffle(free_.begin(), free_.end(), std::mt19937_64(key));
  }
  int32_t take() {
    const int32_t page = free_.back();
    free_.pop_back();
    return page;
  }
  std::vector<int32_t> take(int32_t count) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < count; ++i) out.push_back(take());
    return out;
  }

 private:
  std::vector<int32_t> free_;
};

/// Which rows report all log-probabilities, at half a megabyte each; the others report what they draw.
enum class Report : uint8_t { every, last_and_some };

bool reports_all(Report report, const Piece& piece, int32_t position) {
  constexpr int32_t kSome = 8;
  if (report == Report::every || piece.end - position <= kSome) return true;
  const uint32_t random =
      philox4x32(static_cast<uint64_t>(piece.end), {static_cast<uint32_t>(position), 0, 0, 0})[0];
  return random % static_cast<uint32_t>(piece.end - piece.begin) < kSome;
}

StepPlan plan_of(const std::vector<Piece>& pieces, Report report, bool mtp) {
  StepPlan plan;
  for (const Piece& piece : pieces) {
    plan.batch.sequences.push_back(
        {.first_row = plan.batch.rows(),
         .rows = piece.end - piece.begin,
         .position = piece.begin,
         .pages = {piece.pages.begin(), piece.pages.begin() + pages_for(piece.end)}});
    for (int32_t i = piece.begin; i < piece.end; ++i) {
      RowOutput output;
      output.row = plan.batch.rows();
      output.draw = true;
      output.params.seed = piece.known->seed;
      output.params.position = static_cast<uint32_t>(i);
      output.all = reports_all(report, piece, i);
      plan.outputs.push_back(output);
      plan.batch.tokens.push_back(piece.known->tokens[static_cast<size_t>(i)]);
      if (!mtp) continue;
      const bool last = piece.known->is_last(i);
      plan.next.push_back(last ? 0 : piece.known->tokens[static_cast<size_t>(i) + 1]);
      if (!last) plan.mtp_outputs.push_back(output);
    }
  }
  return plan;
}

struct Model {
  std::string few_layers, layers;  // in common runs, and in full ones
};

void PrintTo(const Model& model, std::ostream* out) { *out << (full() ? model.layers : model.few_layers); }

/// A model on both sets of kernels, and the prompts.
struct Both {
  std::unique_ptr<LocalExecutor> plain, fast;
  Known prompt;  // of kCached + kLongest tokens
  std::vector<Known> short_prompts;

  explicit Both(const std::string& name) {
    const int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
    const TestModel model = open_test_model(name, threads);
    const auto make = [&](bool is_plain, int32_t max_rows) {
      const Placement placement{.threads = threads, .max_rows = max_rows, .pages = kPages, .mtp = true};
      return load(model, placement, [&](int) {
        return std::move(*make_cuda_ops({.threads = threads, .plain = is_plain, .untried = true}));
      });
    };
    plain = make(true, kPlainRows);
    fast = make(false, kLongest);
    prompt = know(made_up_tokens(kCached + kLongest, plain->vocabulary(), 1), kDrawSeed);
    for (uint64_t key = 0; key < kShortPrompts; ++key) {
      short_prompts.push_back(
          know(made_up_tokens(kShortTokens, plain->vocabulary(), 2 + key), kDrawSeed + key));
    }
  }

  Known know(std::vector<int32_t> tokens, uint64_t seed) const {
    Known known{std::move(tokens), seed, {}, {}};
    const auto count = static_cast<int32_t>(known.tokens.size());
    for (Results* const results : {&known.main, &known.mtp}) {
      if (results == &known.mtp && !mtp()) continue;
      results->all.reserve(known.tokens.size() * static_cast<size_t>(plain->vocabulary()));
    }
    for (int32_t begin = 0; begin < count; begin += kPlainRows) {
      const Piece piece{&known, begin, std::min(begin + kPlainRows, count),
                        Pages(0, seed).take(pages_for(count))};
      const StepResult result = plain->run(plan_of({piece}, Report::every, mtp()));
      EXPECT_EQ(result.failed, std::vector<uint8_t>{0});
      for (const RowResult& row : result.rows) known.main.add(row);
      for (const RowResult& row : result.mtp_rows) known.mtp.add(row);
    }
    return known;
  }

  bool mtp() const { return plain->has_mtp(); }
};

/// What a row of the fast kernels has other than the plain ones; empty: nothing.
std::string difference(const Results& known, int32_t position, const RowResult& row) {
  const auto at = static_cast<size_t>(position);
  if (row.failed) return "failed";
  if (row.token != known.drawn[at]) return fmt::format("drew {} instead of {}", row.token, known.drawn[at]);
  if (std::memcmp(&row.logprob, &known.logprob[at], sizeof(float)) != 0) {
    return fmt::format("log-probability {:a} instead of {:a}", row.logprob, known.logprob[at]);
  }
  const float* const expected = known.all.data() + at * row.all.size();
  if (row.all.empty() || std::memcmp(row.all.data(), expected, row.all.size() * sizeof(float)) == 0)
    return "";
  size_t differing = 0;
  for (size_t i = 0; i < row.all.size(); ++i) differing += row.all[i] != expected[i] ? 1 : 0;
  return fmt::format("{} of {} log-probabilities differ", differing, row.all.size());
}

class CudaSweeps : public testing::TestWithParam<Model> {
 protected:
  static void TearDownTestSuite() { both_.reset(); }
  void SetUp() override {
    const auto device = cuda_device();
    if (!device) GTEST_SKIP() << device.error().message;
    constexpr int64_t kNeeded = int64_t{60} << 30;
    if (device->memory < kNeeded) {
      GTEST_SKIP() << "two copies of the model need 60 GiB, " << device->name << " has "
                   << (device->memory >> 30);
    }
    if (!both_) both_ = std::make_unique<Both>(full() ? GetParam().layers : GetParam().few_layers);
  }
  static const Known& prompt() { return both_->prompt; }

  /// Whether each row of the step is the plain kernels'; else the first that is not.
  static testing::AssertionResult same(const std::vector<Piece>& pieces, Report report,
                                       const std::vector<PageCopy>& copies = {}) {
    StepPlan plan = plan_of(pieces, report, both_->mtp());
    plan.copies = copies;
    const StepResult result = both_->fast->run(plan);
    auto row = result.rows.begin(), mtp_row = result.mtp_rows.begin();
    for (const Piece& piece : pieces) {
      for (int32_t i = piece.begin; i < piece.end; ++i) {
        std::string text = difference(piece.known->main, i, *row++);
        if (text.empty() && both_->mtp() && !piece.known->is_last(i)) {
          text = difference(piece.known->mtp, i, *mtp_row++);
          if (!text.empty()) text.insert(0, "MTP: ");
        }
        if (text.empty()) continue;
        return testing::AssertionFailure()
               << fmt::format("sequence {} of {}, tokens {} to {}: at {}: {}", &piece - pieces.data(),
                              pieces.size(), piece.begin, piece.end, i, text);
      }
    }
    return testing::AssertionSuccess();
  }

  static inline std::unique_ptr<Both> both_;
};

INSTANTIATE_TEST_SUITE_P(Hy3, CudaSweeps, testing::Values(Model{"synthetic:hy3:2", "synthetic:hy3:8"}));
INSTANTIATE_TEST_SUITE_P(HyMt2, CudaSweeps,
                         testing::Values(Model{"synthetic:hy-mt2-30b:3", "synthetic:hy-mt2-30b"}));

TEST_P(CudaSweeps, PromptsOfEveryLength) {
  for (const int32_t length : lengths_up_to(320)) {
    const Piece piece{&prompt(), 0, length, Pages(0, static_cast<uint64_t>(length)).take(pages_for(length))};
    const bool every = length <= 64 || (length > 320 && full());
    EXPECT_TRUE(same({piece}, every ? Report::every : Report::last_and_some)) << length;
  }
}

/// The cached tokens' last page is shared in part, so each run gets a copy of it.
TEST_P(CudaSweeps, AfterCachedTokens) {
  constexpr int32_t kWhole = kCached / kPageTokens;
  Piece cached{&prompt(), 0, kCached, {}};
  for (int32_t page = 0; page <= kWhole; ++page) cached.pages.push_back(page);
  ASSERT_TRUE(same({cached}, Report::every));
  for (const int32_t length : lengths_up_to(64)) {
    Pages pages(kWhole + 1, static_cast<uint64_t>(length));
    Piece piece{&prompt(), kCached, kCached + length, {cached.pages.begin(), cached.pages.begin() + kWhole}};
    while (static_cast<int32_t>(piece.pages.size()) < pages_for(piece.end))
      piece.pages.push_back(pages.take());
    const PageCopy copy{kWhole, piece.pages[kWhole]};
    const Report report = length <= 64 ? Report::every : Report::last_and_some;
    EXPECT_TRUE(same({piece}, report, {copy})) << length;
  }
}

TEST_P(CudaSweeps, BatchesOfFewTokensEach) {
  constexpr int32_t kBefore = 64;
  static_assert(kBefore % kPageTokens == 0);
  std::vector<Piece> cached;
  for (const Known& known : both_->short_prompts) {
    cached.push_back({&known, 0, kBefore, {static_cast<int32_t>(cached.size())}});
  }
  ASSERT_TRUE(same(cached, Report::every));
  for (int32_t size = 1; size <= kShortPrompts; ++size) {
    for (int32_t count = 1; count <= 9; ++count) {
      Pages pages(kShortPrompts, static_cast<uint64_t>(10 * size + count));
      std::vector<Piece> pieces(cached.begin(), cached.begin() + size);
      for (Piece& piece : pieces) {
        piece.begin = kBefore;
        piece.end = kBefore + count;
        piece.pages.push_back(pages.take());
      }
      EXPECT_TRUE(same(pieces, Report::every)) << size << " sequences, " << count << " tokens each";
    }
  }
}

/// All prompts side by side, each step taking a random number of each one's tokens; the last seeds are new in
/// every run.
TEST_P(CudaSweeps, AnyChunking) {
  std::vector<uint64_t> seeds = {1, 2, 3, 4};
  for (int i = 0; i < (full() ? 4 : 1); ++i) seeds.push_back(std::random_device{}());
  for (const uint64_t seed : seeds) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    Pages pages(0, seed);
    std::vector<Piece> all = {{&prompt(), 0, 0, pages.take(pages_for(kCached + kLongest))}};
    for (const Known& known : both_->short_prompts)
      all.push_back({&known, 0, 0, pages.take(pages_for(kShortTokens))});
    for (bool more = true; more;) {
      std::vector<Piece> step;
      int32_t room = kLongest;
      more = false;
      for (Piece& piece : all) {
        const auto left = static_cast<int32_t>(piece.known->tokens.size()) - piece.end;
        more = more || left > 0;
        const double most = piece.known == &prompt() ? 2048 : 64;  // a length of each size is as likely
        const auto length =
            static_cast<int32_t>(std::pow(most, static_cast<double>(random() >> 11) * 0x1p-53));
        const int32_t taken = random() % 8 == 0 ? 0 : std::min({length, left, room});
        if (taken == 0) continue;
        room -= taken;
        piece.begin = std::exchange(piece.end, piece.end + taken);
        step.push_back(piece);
      }
      if (step.empty()) continue;
      ASSERT_TRUE(same(step, Report::last_and_some));
    }
  }
}

/// What five sequences draw, a token each a step, is what the plain kernels draw from their text at once.
TEST_P(CudaSweeps, TextsDrawnTokenByToken) {
  constexpr int32_t kSequences = 5, kBefore = 50, kDrawn = 46;
  std::vector<Known> texts(kSequences);
  std::vector<Piece> pieces;
  Pages pages(0, 5);
  for (Known& text : texts) {
    const auto index = static_cast<size_t>(&text - texts.data());
    const std::vector<int32_t>& prompt = both_->short_prompts[index].tokens;
    text.tokens.assign(prompt.begin(), prompt.begin() + kBefore);
    text.seed = 1000 + index;
    pieces.push_back({&text, 0, kBefore, pages.take(pages_for(kBefore + kDrawn))});
  }
  std::vector<std::vector<float>> logprobs(kSequences);
  for (int32_t step = 0; step < kDrawn; ++step) {
    const StepPlan plan = plan_of(pieces, Report::last_and_some, false);
    const StepResult result = both_->fast->run(plan);
    for (size_t s = 0; s < kSequences; ++s) {
      const SequenceRows& rows = plan.batch.sequences[s];
      const RowResult& last = result.rows[static_cast<size_t>(rows.first_row + rows.rows - 1)];
      texts[s].tokens.push_back(last.token);
      logprobs[s].push_back(last.logprob);
      pieces[s].begin = pieces[s].end++;
    }
  }
  for (size_t s = 0; s < kSequences; ++s) {
    const Known known = both_->know(texts[s].tokens, texts[s].seed);
    const auto at = [](const auto& values) { return values.begin() + kBefore - 1; };
    EXPECT_TRUE(
        std::equal(at(known.main.drawn), at(known.main.drawn) + kDrawn, texts[s].tokens.begin() + kBefore))
        << s;
    EXPECT_TRUE(std::equal(logprobs[s].begin(), logprobs[s].end(), at(known.main.logprob))) << s;
  }
}

}  // namespace
}  // namespace tercet::verify
