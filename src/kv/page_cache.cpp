#include "kv/page_cache.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace tercet {
namespace {

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

bool begins_with(std::span<const int32_t> tokens, std::span<const int32_t> prefix) {
  return common_prefix(tokens, prefix) == prefix.size();
}

}  // namespace

bool PageCache::TokensLess::operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

PageCache::PageCache(int32_t pages, int32_t page_tokens)
    : page_tokens_(page_tokens), pages_(static_cast<size_t>(pages)) {
  TERCET_CHECK_GE(page_tokens, 1);
  for (int32_t id = pages; id-- > 0;) free_.push_back(id);
}

std::optional<CachedPrefix> PageCache::begin(SequenceId id, std::span<const int32_t> tokens, int32_t total) {
  TERCET_CHECK(!sequences_.contains(id));
  TERCET_CHECK_LE(static_cast<int64_t>(tokens.size()), int64_t{total});
  const Match found = match(tokens);
  // Cached nodes that become held cannot be evicted for the rest.
  const auto idle = static_cast<int32_t>(std::count_if(
      found.nodes.begin(), found.nodes.end(), [&](int32_t node) { return page(node).holders == 0; }));
  const int32_t needed = pages_for(total) - static_cast<int32_t>(found.nodes.size());
  if (needed > available() - idle) return std::nullopt;

  Sequence& s = sequences_[id];
  s.pages = found.nodes;
  s.nodes = found.nodes.size();
  for (const int32_t node : found.nodes) hold(node);
  CachedPrefix prefix{.tokens = static_cast<int32_t>(s.nodes) * page_tokens_, .copy = std::nullopt};
  if (found.tokens > 0) {
    touch(found.partial);
    const auto matched =
        tokens.subspan(static_cast<size_t>(prefix.tokens), static_cast<size_t>(found.tokens));
    s.tail.assign(matched.begin(), matched.end());
    prefix.tokens += found.tokens;
    s.pages.push_back(take());
    // Where nothing else could be evicted, the page has become the sequence's own, contents and all.
    if (s.pages.back() != found.partial) prefix.copy = {.from = found.partial, .to = s.pages.back()};
  }
  while (static_cast<int32_t>(s.pages.size()) < pages_for(total)) s.pages.push_back(take());
  return prefix;
}

bool PageCache::reserve(SequenceId id, int32_t total) {
  Sequence& s = sequence(id);
  const int32_t needed = pages_for(total) - static_cast<int32_t>(s.pages.size());
  if (needed > available()) return false;
  for (int32_t i = 0; i < needed; ++i) s.pages.push_back(take());
  return true;
}

void PageCache::commit(SequenceId id, std::span<const int32_t> tokens) {
  Sequence& s = sequence(id);
  const auto page_size = static_cast<size_t>(page_tokens_);
  TERCET_CHECK_LE(s.nodes * page_size + s.tail.size() + tokens.size(), s.pages.size() * page_size);
  for (const int32_t token : tokens) {
    s.tail.push_back(token);
    if (s.tail.size() < page_size) continue;
    const int32_t parent = s.nodes == 0 ? -1 : s.pages[s.nodes - 1];
    int32_t& own = s.pages[s.nodes];
    if (const int32_t twin = child_beginning_with(parent, s.tail); twin >= 0) {
      free(own);
      own = twin;
      hold(twin);
    } else {
      remove_shorter(parent, s.tail);
      insert(own, parent, s.tail);
    }
    ++s.nodes;
    s.tail.clear();
  }
}

void PageCache::end(SequenceId id, bool keep) {
  Sequence& s = sequence(id);
  if (keep && !s.tail.empty()) {
    const int32_t parent = s.nodes == 0 ? -1 : s.pages[s.nodes - 1];
    if (const int32_t longer = child_beginning_with(parent, s.tail); longer >= 0) {
      touch(longer);
    } else {
      remove_shorter(parent, s.tail);
      insert(s.pages[s.nodes], parent, s.tail);
      ++s.nodes;
    }
  }
  for (size_t i = s.pages.size(); i-- > 0;) {
    if (i < s.nodes) {
      release(s.pages[i]);
    } else {
      free(s.pages[i]);
    }
  }
  sequences_.erase(id);
}

const std::vector<int32_t>& PageCache::pages(SequenceId id) const { return sequence(id).pages; }

int32_t PageCache::tokens(SequenceId id) const {
  const Sequence& s = sequence(id);
  return static_cast<int32_t>(s.nodes) * page_tokens_ + static_cast<int32_t>(s.tail.size());
}

PageCounts PageCache::counts() const {
  const auto total = static_cast<int32_t>(pages_.size());
  const auto idle = static_cast<int32_t>(free_.size());
  return {.total = total, .free = idle, .cached = cached_, .active = total - idle - cached_};
}

PageCache::Sequence& PageCache::sequence(SequenceId id) {
  const auto it = sequences_.find(id);
  TERCET_CHECK(it != sequences_.end());
  return it->second;
}

const PageCache::Sequence& PageCache::sequence(SequenceId id) const {
  const auto it = sequences_.find(id);
  TERCET_CHECK(it != sequences_.end());
  return it->second;
}

int32_t PageCache::pages_for(int32_t tokens) const { return (tokens + page_tokens_ - 1) / page_tokens_; }

// A node's parents have at least its holders, so every node without holders can be evicted, leaves first.
int32_t PageCache::available() const { return static_cast<int32_t>(free_.size()) + cached_; }

PageCache::Match PageCache::match(std::span<const int32_t> tokens) const {
  Match found;
  const auto page_size = static_cast<size_t>(page_tokens_);
  for (int32_t parent = -1; !tokens.empty();) {
    const auto key = tokens.first(std::min(tokens.size(), page_size));
    const Children& among = children(parent);
    // In lexicographic order the longest common prefix is one of the two neighbours'.
    const auto above = among.lower_bound(key);
    size_t longest = 0;
    int32_t best = -1;
    const auto consider = [&](Children::const_iterator child) {
      const size_t common = common_prefix(key, child->first);
      if (common <= longest) return;
      longest = common;
      best = child->second;
    };
    if (above != among.end()) consider(above);
    if (above != among.begin()) consider(std::prev(above));
    if (longest < page_size) {
      found.partial = best;
      found.tokens = static_cast<int32_t>(longest);
      break;
    }
    found.nodes.push_back(best);
    parent = best;
    tokens = tokens.subspan(page_size);
  }
  return found;
}

int32_t PageCache::take() {
  if (free_.empty()) {
    TERCET_CHECK(!evictable_.empty());
    remove(evictable_.begin()->second);
  }
  const int32_t id = free_.back();
  free_.pop_back();
  page(id).state = State::owned;
  page(id).holders = 1;
  return id;
}

void PageCache::free(int32_t id) {
  page(id) = Page{};
  free_.push_back(id);
}

void PageCache::hold(int32_t id) {
  if (page(id).holders++ > 0) return;
  --cached_;
  set_evictable(id);
}

void PageCache::release(int32_t id) {
  touch(id);
  if (--page(id).holders > 0) return;
  ++cached_;
  set_evictable(id);
}

void PageCache::touch(int32_t id) {
  evictable_.erase({page(id).used, id});
  page(id).used = ++clock_;
  set_evictable(id);
}

void PageCache::insert(int32_t id, int32_t parent, std::span<const int32_t> tokens) {
  Page& p = page(id);
  p.state = State::node;
  p.parent = parent;
  p.tokens.assign(tokens.begin(), tokens.end());
  children(parent).emplace(p.tokens, id);
  if (parent >= 0) set_evictable(parent);
}

void PageCache::remove(int32_t id) {
  const int32_t parent = page(id).parent;
  TERCET_CHECK(page(id).children.empty());
  TERCET_CHECK_EQ(page(id).holders, 0);
  evictable_.erase({page(id).used, id});
  --cached_;
  children(parent).erase(page(id).tokens);
  free(id);
  if (parent >= 0) set_evictable(parent);
}

void PageCache::set_evictable(int32_t id) {
  const Page& p = page(id);
  if (p.state == State::node && p.holders == 0 && p.children.empty()) {
    evictable_.emplace(p.used, id);
  } else {
    evictable_.erase({p.used, id});
  }
}

int32_t PageCache::child_beginning_with(int32_t parent, std::span<const int32_t> tokens) const {
  const auto it = children(parent).lower_bound(tokens);
  return it != children(parent).end() && begins_with(it->first, tokens) ? it->second : -1;
}

void PageCache::remove_shorter(int32_t parent, std::span<const int32_t> tokens) {
  // No key is a prefix of another, so only the neighbour below can be one of `tokens`.
  const auto it = children(parent).lower_bound(tokens);
  if (it == children(parent).begin()) return;
  const auto below = std::prev(it);
  if (begins_with(tokens, below->first)) remove(below->second);
}

void PageCache::check_integrity() const {
  check_pages();
  check_nodes();
  check_sequences();
}

void PageCache::check_pages() const {
  const auto in_state = [&](State state) {
    return std::count_if(pages_.begin(), pages_.end(), [&](const Page& p) { return p.state == state; });
  };
  const std::set<int32_t> distinct(free_.begin(), free_.end());
  TERCET_CHECK_EQ(distinct.size(), free_.size());
  for (const int32_t id : free_) TERCET_CHECK(page(id).state == State::free);
  TERCET_CHECK_EQ(static_cast<ptrdiff_t>(free_.size()), in_state(State::free));

  const auto cached = std::count_if(pages_.begin(), pages_.end(),
                                    [](const Page& p) { return p.state == State::node && p.holders == 0; });
  const auto held = std::count_if(pages_.begin(), pages_.end(), [](const Page& p) { return p.holders > 0; });
  TERCET_CHECK_EQ(cached, ptrdiff_t{cached_});
  TERCET_CHECK_EQ(static_cast<ptrdiff_t>(free_.size()) + cached + held,
                  static_cast<ptrdiff_t>(pages_.size()));
}

void PageCache::check_nodes() const {
  size_t nodes = 0;
  size_t children_in_all = root_.size();
  std::set<std::pair<uint64_t, int32_t>> evictable;
  const auto check_children = [&](int32_t parent) {
    std::span<const int32_t> before;
    for (const auto& [tokens, id] : children(parent)) {
      TERCET_CHECK(page(id).state == State::node);
      TERCET_CHECK_EQ(page(id).parent, parent);
      TERCET_CHECK(tokens.data() == page(id).tokens.data() && tokens.size() == page(id).tokens.size());
      TERCET_CHECK(before.empty() || !begins_with(tokens, before));
      before = tokens;
    }
  };
  check_children(-1);
  for (int32_t id = 0; id < static_cast<int32_t>(pages_.size()); ++id) {
    const Page& p = page(id);
    if (p.state != State::node) continue;
    ++nodes;
    children_in_all += p.children.size();
    check_children(id);
    TERCET_CHECK(!p.tokens.empty());
    const bool full = p.tokens.size() == static_cast<size_t>(page_tokens_);
    TERCET_CHECK(full || (p.tokens.size() < static_cast<size_t>(page_tokens_) && p.children.empty() &&
                          p.holders == 0));
    if (p.holders == 0 && p.children.empty()) evictable.emplace(p.used, id);
  }
  TERCET_CHECK_EQ(nodes, children_in_all);  // with one parent each: a tree, every node reachable
  TERCET_CHECK(evictable == evictable_);
}

void PageCache::check_sequences() const {
  std::vector<int32_t> holders(pages_.size(), 0);
  const auto page_size = static_cast<size_t>(page_tokens_);
  for (const auto& [sequence_id, s] : sequences_) {
    TERCET_CHECK_LE(s.nodes, s.pages.size());
    TERCET_CHECK_LT(s.tail.size(), page_size);
    TERCET_CHECK_LE(s.nodes * page_size + s.tail.size(), s.pages.size() * page_size);
    for (size_t i = 0; i < s.pages.size(); ++i) {
      const Page& p = page(s.pages[i]);
      ++holders[static_cast<size_t>(s.pages[i])];
      TERCET_CHECK(p.state == (i < s.nodes ? State::node : State::owned));
      if (i < s.nodes) TERCET_CHECK_EQ(p.parent, i == 0 ? -1 : s.pages[i - 1]);
      if (i >= s.nodes) TERCET_CHECK_EQ(p.holders, 1);
    }
  }
  for (size_t id = 0; id < pages_.size(); ++id) TERCET_CHECK_EQ(pages_[id].holders, holders[id]);
}

}  // namespace tercet
