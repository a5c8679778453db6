// Random runs of the page cache beside a model that knows no pages, only prefixes, and beside the bytes that
// the page ids stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "kv/page_cache.h"

namespace tercet {
namespace {

using Tokens = std::vector<int32_t>;

size_t common_prefix(const Tokens& a, const Tokens& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

bool begins_with(const Tokens& tokens, const Tokens& prefix) {
  return common_prefix(tokens, prefix) == prefix.size();
}

Tokens first(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(std::min(count, tokens.size()))};
}

/// A cached page is the whole prefix that it completes, and the time of its last use.
class NaiveCache {
 public:
  NaiveCache(int32_t pages, size_t page) : pages_(pages), page_(page) {}

  struct Sequence {
    Tokens committed;
    size_t pages = 0;
  };

  /// Tokens found, or −1 where pages do not suffice.
  int32_t begin(SequenceId id, const Tokens& tokens, size_t total) {
    size_t longest = 0;
    for (const auto& [prefix, used] : nodes_) longest = std::max(longest, common_prefix(prefix, tokens));
    Sequence s{.committed = first(tokens, longest), .pages = longest / page_};
    const size_t needed = pages_for(total) - s.pages;
    sequences_[id] = s;  // holds its path
    if (free() + cached() < static_cast<int32_t>(needed)) {
      sequences_.erase(id);
      return -1;
    }
    if (longest % page_ != 0) touch_source(tokens, longest);
    take(id, needed);
    return static_cast<int32_t>(longest);
  }

  bool reserve(SequenceId id, size_t total) {
    const Sequence& s = sequences_.at(id);
    const size_t needed = std::max(pages_for(total), s.pages) - s.pages;
    if (free() + cached() < static_cast<int32_t>(needed)) return false;
    take(id, needed);
    return true;
  }

  void commit(SequenceId id, const Tokens& tokens) {
    Sequence& s = sequences_.at(id);
    for (const int32_t token : tokens) {
      s.committed.push_back(token);
      if (s.committed.size() % page_ == 0) add(s.committed);
    }
  }

  void end(SequenceId id, bool keep) {
    const Tokens tokens = sequences_.at(id).committed;
    sequences_.erase(id);
    const bool partial = keep && tokens.size() % page_ != 0;
    if (partial) {
      const auto longer = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& node) {
        return same_page(node.first, tokens) && begins_with(node.first, tokens);
      });
      if (longer == nodes_.end()) {
        add(tokens);
        nodes_[tokens] = ++clock_;
      } else {
        longer->second = ++clock_;
      }
    }
    for (size_t n = tokens.size() / page_; n > 0; --n) nodes_.at(first(tokens, n * page_)) = ++clock_;
  }

  int32_t cached() const {
    return static_cast<int32_t>(
        std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& node) { return !held(node.first); }));
  }
  int32_t free() const {
    auto used = static_cast<int32_t>(nodes_.size());
    for (const auto& [id, s] : sequences_) {
      used += static_cast<int32_t>(s.pages - s.committed.size() / page_);
    }
    return pages_ - used;
  }
  const std::map<SequenceId, Sequence>& sequences() const { return sequences_; }

 private:
  size_t pages_for(size_t tokens) const { return (tokens + page_ - 1) / page_; }
  bool same_page(const Tokens& a, const Tokens& b) const {
    return pages_for(a.size()) == pages_for(b.size());
  }

  bool held(const Tokens& prefix) const {
    return prefix.size() % page_ == 0 &&
           std::any_of(sequences_.begin(), sequences_.end(),
                       [&](const auto& entry) { return begins_with(entry.second.committed, prefix); });
  }

  /// The page that a part is copied from counts as used: of those that match as far, the first that is not
  /// below the wanted tokens, else the last below.
  void touch_source(const Tokens& tokens, size_t longest) {
    const Tokens matched = first(tokens, longest);
    const Tokens key = first(tokens, pages_for(longest) * page_);
    auto source = nodes_.end();
    for (auto node = nodes_.begin(); node != nodes_.end(); ++node) {
      if (!same_page(node->first, matched) || !begins_with(node->first, matched)) continue;
      source = node;
      if (!(node->first < key)) break;
    }
    source->second = ++clock_;
  }

  void add(const Tokens& prefix) {
    std::erase_if(nodes_, [&](const auto& node) {
      return node.first.size() < prefix.size() && same_page(node.first, prefix) &&
             begins_with(prefix, node.first);
    });
    nodes_.emplace(prefix, 0);
  }

  void take(SequenceId id, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (free() == 0) evict();
      ++sequences_.at(id).pages;
    }
  }

  void evict() {
    auto oldest = nodes_.end();
    for (auto node = nodes_.begin(); node != nodes_.end(); ++node) {
      if (held(node->first)) continue;
      const auto next = std::next(node);
      if (next != nodes_.end() && begins_with(next->first, node->first)) continue;  // it has children
      if (oldest == nodes_.end() || node->second < oldest->second) oldest = node;
    }
    nodes_.erase(oldest);
  }

  int32_t pages_;
  size_t page_;
  uint64_t clock_ = 0;
  std::map<Tokens, uint64_t> nodes_;
  std::map<SequenceId, Sequence> sequences_;
};

/// The cache, the model, and what each slot of each page holds.
class Harness {
 public:
  Harness(int32_t pages, int32_t page, uint32_t seed)
      : page_(static_cast<size_t>(page)),
        cache_(pages, page),
        model_(pages, page_),
        bytes_(static_cast<size_t>(pages), Tokens(page_, -1)),
        random_(seed) {}

  void step() {
    const int action = below(6);
    if (sequences() == 0 || (action == 0 && sequences() < 5)) {
      begin();
    } else if (action <= 2) {
      reserve(pick());
    } else if (action <= 4) {
      commit(pick());
    } else {
      end(pick());
    }
    check();
  }

  int found() const { return found_; }
  int copied() const { return copied_; }
  int refused() const { return refused_; }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  int sequences() const { return static_cast<int>(model_.sequences().size()); }
  SequenceId pick() { return std::next(model_.sequences().begin(), below(sequences()))->first; }

  /// Of two kinds of token, often beginning as an earlier one did.
  Tokens some_tokens() {
    Tokens tokens;
    if (!seen_.empty() && below(4) != 0) {
      tokens = seen_[static_cast<size_t>(below(static_cast<int>(seen_.size())))];
      tokens = first(tokens, static_cast<size_t>(below(static_cast<int>(tokens.size()) + 1)));
    }
    for (int n = below(6) + (tokens.empty() ? 1 : 0); n > 0; --n) tokens.push_back(below(2));
    return tokens;
  }

  void begin() {
    const SequenceId id = next_id_++;
    const Tokens tokens = some_tokens();
    const size_t total = tokens.size() + static_cast<size_t>(below(4));
    const auto found = cache_.begin(id, tokens, static_cast<int32_t>(total));
    ASSERT_EQ(found ? found->tokens : -1, model_.begin(id, tokens, total));
    if (!found) {
      ++refused_;
      return;
    }
    found_ += found->tokens;
    if (!found->copy) return;
    ++copied_;
    ASSERT_NE(found->copy->from, found->copy->to);
    bytes_[static_cast<size_t>(found->copy->to)] = bytes_[static_cast<size_t>(found->copy->from)];
  }

  void reserve(SequenceId id) {
    const size_t total = model_.sequences().at(id).committed.size() + static_cast<size_t>(below(7));
    const bool enough = model_.reserve(id, total);
    ASSERT_EQ(cache_.reserve(id, static_cast<int32_t>(total)), enough);
    if (!enough) ++refused_;
  }

  void commit(SequenceId id) {
    const auto& s = model_.sequences().at(id);
    const size_t room = s.pages * page_ - s.committed.size();
    Tokens tokens;
    for (int n = below(static_cast<int>(room) + 1); n > 0; --n) tokens.push_back(below(2));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t position = s.committed.size() + i;
      const int32_t target = cache_.pages(id)[position / page_];
      for (const auto& [other, unused] : model_.sequences()) {
        const auto& pages = cache_.pages(other);
        ASSERT_TRUE(other == id || std::find(pages.begin(), pages.end(), target) == pages.end());
      }
      bytes_[static_cast<size_t>(target)][position % page_] = tokens[i];
    }
    cache_.commit(id, tokens);
    model_.commit(id, tokens);
  }

  void end(SequenceId id) {
    const bool keep = below(3) != 0;
    if (const Tokens& tokens = model_.sequences().at(id).committed; !tokens.empty()) seen_.push_back(tokens);
    cache_.end(id, keep);
    model_.end(id, keep);
  }

  void check() {
    cache_.check_integrity();
    ASSERT_EQ(cache_.counts().free, model_.free());
    ASSERT_EQ(cache_.counts().cached, model_.cached());
    for (const auto& [id, s] : model_.sequences()) {
      ASSERT_EQ(cache_.tokens(id), static_cast<int32_t>(s.committed.size()));
      ASSERT_EQ(cache_.pages(id).size(), s.pages);
      for (size_t i = 0; i < s.committed.size(); ++i) {
        const auto page = static_cast<size_t>(cache_.pages(id)[i / page_]);
        ASSERT_EQ(bytes_[page][i % page_], s.committed[i]) << "sequence " << id << " position " << i;
      }
    }
  }

  size_t page_;
  PageCache cache_;
  NaiveCache model_;
  std::vector<Tokens> bytes_;
  std::vector<Tokens> seen_;
  std::mt19937 random_;
  SequenceId next_id_ = 1;
  int found_ = 0, copied_ = 0, refused_ = 0;
};

TEST(PageCacheRandom, AgreesWithTheModelAndTheBytes) {
  int found = 0;
  int copied = 0;
  int refused = 0;
  for (const int32_t page : {1, 2, 3, 4}) {
    for (const int32_t pages : {1, 3, 8, 30}) {
      for (uint32_t seed = 0; seed < 6; ++seed) {
        SCOPED_TRACE(testing::Message() << pages << " pages of " << page << ", seed " << seed);
        Harness harness(pages, page, seed);
        for (int i = 0; i < 600; ++i) {
          harness.step();
          if (HasFatalFailure()) return;
        }
        found += harness.found();
        copied += harness.copied();
        refused += harness.refused();
      }
    }
  }
  // The runs meet what they are for.
  EXPECT_GT(found, 10000);
  EXPECT_GT(copied, 500);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace tercet
