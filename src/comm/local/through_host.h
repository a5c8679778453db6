// Exchange between devices, by way of the process's memory.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "ops/ops.h"

namespace tercet {

/// An end of a local group for a rank whose rows lie where `ops` allocates: `end` itself where that is the
/// process's memory, else one that copies there and back, which waits for the device. `ops` outlives it.
std::unique_ptr<Communicator> through_host(std::unique_ptr<Communicator> end, Ops& ops);

}  // namespace tercet
