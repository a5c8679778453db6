// What ranks exchange: results of disjoint columns, rows of the residual stream. No sum crosses a rank
// (docs/exactness.md, rule 4).
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace tercet {

/// One rank's end of a group. Every rank of the group calls the same operations in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// all[r] = mine[r] of rank 0, then of rank 1, …: all.cols = mine.cols·size(). Blocks until done.
  /// In a group of one, both may be the same memory.
  virtual void all_gather(Rows mine, Rows all) = 0;

  /// Rows to rank `to`, which receives them by recv with the same shape. Returns when they may be changed.
  virtual void send(Rows x, int to) = 0;
  virtual void recv(Rows x, int from) = 0;
};

}  // namespace tercet
