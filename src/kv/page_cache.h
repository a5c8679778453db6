// Which page of the KV cache holds what: pages with holders, and a tree of token prefixes over them. Integers
// only; whoever holds the bytes obeys the page ids.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

namespace tercet {

using SequenceId = uint64_t;

/// What a new sequence finds in the cache.
struct CachedPrefix {
  int32_t tokens = 0;  // its first ones, whose keys and values need not be computed
  /// Where part of the prefix lies in a page that others may need: that page is to be copied before anything
  /// that is planned later is written.
  struct Copy {
    int32_t from = 0;
    int32_t to = 0;
  };
  std::optional<Copy> copy;
};

struct PageCounts {
  int32_t total = 0;
  int32_t free = 0;
  int32_t cached = 0;  // in the tree, held by no sequence: what eviction can give
  int32_t active = 0;  // held by sequences
};

/// Each page is free, owned by one sequence, or a node of the tree. A node's tokens, after those of its
/// parents, are the prefix whose keys and values it holds; full nodes are shared by the sequences that begin
/// with it, partial ones are only copied from. A sequence's pages are a path of full nodes from the root,
/// then pages of its own. Not thread-safe.
class PageCache {
 public:
  /// Ids are 0 … pages − 1.
  PageCache(int32_t pages, int32_t page_tokens);

  /// Starts a sequence with pages for `total` tokens, the first of them taken over from the cache as far as
  /// it holds a prefix of `tokens`, of any length. Whoever needs the logits after the last token leaves that
  /// one out of `tokens`. Evicts what it must, least recently used first. Nothing, and nothing changed, where
  /// free and cached pages do not suffice. Cost: O(tokens · log pages).
  std::optional<CachedPrefix> begin(SequenceId id, std::span<const int32_t> tokens, int32_t total);

  /// Gives the sequence pages for `total` tokens in all. False, and nothing changed, where pages do not
  /// suffice.
  bool reserve(SequenceId id, int32_t total);

  /// The next tokens' keys and values have been computed, and none of them failed. Full pages enter the tree
  /// at once; one that the tree has already is given back for that one, so pages() may change.
  void commit(SequenceId id, std::span<const int32_t> tokens);

  /// Releases the pages. Full ones stay cached; with `keep` a partly filled one does too.
  void end(SequenceId id, bool keep);

  /// In order of position.
  const std::vector<int32_t>& pages(SequenceId id) const;
  /// Tokens taken over and committed.
  int32_t tokens(SequenceId id) const;
  size_t sequences() const { return sequences_.size(); }
  PageCounts counts() const;

  /// Stops the program where an invariant of src/engine/CONTRACT.md is broken. Cost: O(pages · page_tokens).
  void check_integrity() const;

 private:
  struct TokensLess {
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  /// Keys view the child's own tokens; no key is a prefix of another.
  using Children = std::map<std::span<const int32_t>, int32_t, TokensLess>;

  enum class State : uint8_t { free, owned, node };
  struct Page {
    State state = State::free;
    int32_t holders = 0;          // sequences among whose pages it is
    int32_t parent = -1;          // node: −1 is the root
    std::vector<int32_t> tokens;  // node
    Children children;            // node
    uint64_t used = 0;            // node: when it was last released or matched
  };
  struct Sequence {
    std::vector<int32_t> pages;
    size_t nodes = 0;           // the first of them are nodes
    std::vector<int32_t> tail;  // committed tokens behind those of the nodes; fewer than a page
  };
  struct Match {
    std::vector<int32_t> nodes;  // full ones
    int32_t partial = -1;        // a child of the last of them of which `tokens` match
    int32_t tokens = 0;
  };

  Page& page(int32_t id) { return pages_[static_cast<size_t>(id)]; }
  const Page& page(int32_t id) const { return pages_[static_cast<size_t>(id)]; }
  Children& children(int32_t parent) { return parent < 0 ? root_ : page(parent).children; }
  const Children& children(int32_t parent) const { return parent < 0 ? root_ : page(parent).children; }
  Sequence& sequence(SequenceId id);
  const Sequence& sequence(SequenceId id) const;

  int32_t pages_for(int32_t tokens) const;
  int32_t available() const;
  Match match(std::span<const int32_t> tokens) const;
  /// An owned page with one holder; evicts where none is free.
  int32_t take();
  void free(int32_t id);
  void hold(int32_t id);
  void release(int32_t id);
  void touch(int32_t id);
  void insert(int32_t id, int32_t parent, std::span<const int32_t> tokens);
  void remove(int32_t id);
  void set_evictable(int32_t id);
  /// The child of `parent` that begins with `tokens`, or −1.
  int32_t child_beginning_with(int32_t parent, std::span<const int32_t> tokens) const;
  /// Removes a partial child whose tokens `tokens` goes on from.
  void remove_shorter(int32_t parent, std::span<const int32_t> tokens);

  void check_pages() const;
  void check_nodes() const;
  void check_sequences() const;

  const int32_t page_tokens_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  int32_t cached_ = 0;
  uint64_t clock_ = 0;
  Children root_;
  std::set<std::pair<uint64_t, int32_t>> evictable_;  // (used, id) of nodes without holders and children
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace tercet
